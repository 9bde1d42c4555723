// The attempts of a run as bars on one time line: the wait for the first token, then the stream.

import { html } from "./html.js";
import { clock, duration, words } from "./format.js";

// The attempts that are over, and those in flight, oldest first, by the gateway's clock.
function attemptsOf(run, now) {
  const over = (run.attempts_of_late ?? []).map((it) => ({
    candidate: it.candidate ?? "-",
    began: it.began_unix_ms,
    first: it.served_after_ms,
    lasted: it.duration_ms,
    failed: it.class != null,
    text: outcome(it),
    detail: [it.signal, it.message, it.request_id && `request ${it.request_id}`].filter(Boolean).join(" · "),
  }));
  // An attempt of the outer layer holds one of the inner layer: the innermost is the one that waits.
  const work = (run.work ?? []).filter((it) => it.kind === "attempt" && it.in_flight <= 1);
  const flying = work.map((it) => ({
    candidate: it.candidate ?? "-",
    began: now - it.elapsed_ms,
    first: null,
    lasted: it.elapsed_ms,
    flies: true,
    text: `in flight, silent for ${duration(it.progress?.last_change_ago_ms ?? it.elapsed_ms)}`,
    detail: "",
  }));
  return [...over, ...flying].sort((a, b) => a.began - b.began);
}

// Places on the line, in percent. A time in which no attempt was under way is the agent's own, and is
// shortened to a tenth of the line at most, so that the attempts keep their width.
function scaleOf(attempts) {
  const pieces = [];
  let reached = null;
  for (const { began, lasted } of attempts) {
    if (reached !== null && began > reached) pieces.push({ from: reached, to: began, isGap: true });
    const from = Math.max(reached ?? began, began);
    const to = Math.max(from, began + lasted);
    pieces.push({ from, to });
    reached = to;
  }
  const busy = pieces.reduce((sum, it) => sum + (it.isGap ? 0 : it.to - it.from), 0) || 1;
  let width = 0;
  for (const piece of pieces) {
    piece.at = width;
    piece.width = piece.isGap ? Math.min(piece.to - piece.from, busy / 10) : piece.to - piece.from;
    width += piece.width;
  }
  return (time) => {
    const piece = pieces.findLast((it) => it.from <= time) ?? pieces[0];
    const part = piece.to > piece.from ? Math.min(1, (time - piece.from) / (piece.to - piece.from)) : 0;
    return (100 * (piece.at + part * piece.width)) / (width || 1);
  };
}

function outcome(it) {
  const status = it.status ? ` ${it.status}` : "";
  if (it.class) return `failed: ${words(it.class)}${status}`;
  if (it.reason !== "completed") return `cut: ${words(it.reason)}`;
  return `served${status}`;
}

function Bar({ from, lasted, first, scale, kind }) {
  const place = (at, length) => ({ left: `${scale(at)}%`, width: `max(3px, ${scale(at + length) - scale(at)}%)` });
  if (kind === "flies") return html`<span class="bar-piece flies" style=${place(from, lasted)}></span>`;
  if (first == null) return html`<span class="bar-piece waits ${kind}" style=${place(from, lasted)}></span>`;
  return html`
    <span class="bar-piece waits" style=${place(from, first)}></span>
    <span class="bar-piece streams ${kind}" style=${place(from + first, Math.max(0, lasted - first))}></span>`;
}

export function Timeline({ run }) {
  const now = Date.now();
  const attempts = attemptsOf(run, now);
  if (!attempts.length) return html`<p class="quiet">No attempt yet.</p>`;
  const start = attempts[0].began;
  const end = Math.max(...attempts.map((it) => it.began + it.lasted));
  const scale = scaleOf(attempts);
  return html`<ol class="timeline">
    ${attempts.map((it, at) => {
      const before = attempts[at - 1];
      const waited = before ? it.began - before.began - before.lasted : 0;
      const kind = it.flies ? "flies" : it.failed ? "failed" : "";
      return html`<li key=${`${it.began}-${at}`}>
        <div class="attempt">
          <span class="quiet">${clock(it.began)}</span>
          <bdi class="name">${it.candidate}</bdi>
          <span class=${it.failed ? "bad" : ""}>${it.failed ? "✕ " : ""}${it.text}</span>
          <span class="quiet">
            ${waited > 50 ? `${duration(waited)} after the one before, ` : ""}
            ${it.first != null ? `first token ${duration(it.first)}, ` : ""}${duration(it.lasted)} in all</span>
        </div>
        <div class="track" aria-hidden="true">
          <${Bar} from=${it.began} lasted=${it.lasted} first=${it.first} scale=${scale} kind=${kind} />
        </div>
        ${it.detail && html`<p class="detail quiet"><bdi>${it.detail}</bdi></p>`}
      </li>`;
    })}
  </ol>
  <p class="quiet key"><span class="bar-piece waits"></span> wait for the first token
    <span class="bar-piece streams"></span> answer
    <span class="bar-piece waits failed"></span> failed
    <span class="bar-piece flies"></span> in flight.${" "}
    ${duration(end - start)} in all; time between attempts is shortened.</p>`;
}
