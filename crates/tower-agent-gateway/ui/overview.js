// The strip of numbers, what the page does not see, and the candidates.

import { html, useState } from "./html.js";
import { clearCooldown, endMany, freeze, thaw } from "./actions.js";
import { amount, cost, duration, percent, plural, words } from "./format.js";
import { behind, candidates, forgetToken, frozen, lost, notice, runs, stream, totals } from "./state.js";
import { hasToken } from "./api.js";

function Figure({ name, value, title }) {
  return html`<div class="figure" title=${title}><dt>${name}</dt><dd>${value}</dd></div>`;
}

export function Strip() {
  const { open, tokens } = totals.value;
  const rows = runs.value?.runs ?? [];
  // What a run has spent includes its sub-agents.
  const ids = new Set(rows.map((run) => run.run));
  const above = rows.filter((run) => !ids.has(run.parent));
  const spent = above.reduce((sum, run) => sum + (run.spent?.cost ?? 0), 0);
  const up = candidates.value.filter((it) => it.state === "up").length;
  const all = candidates.value.length;
  return html`<dl class="strip" aria-label="Now">
    <${Figure} name="open runs" value=${open ?? `${rows.length}`}
      title="Runs of this gateway that have not ended" />
    <${Figure} name="output tokens / s" value=${tokens == null ? "-" : tokens.toFixed(1)}
      title="Output tokens that upstreams reported for the calls that ended in the last minute, at this gateway" />
    <${Figure} name=${`cost of the ${plural(rows.length, "run")} below`} value=${cost(spent)}
      title="By the prices of the candidates. The gateway has no route for the cost of a day" />
    <${Figure} name="candidates up" value=${html`${up} of ${all}`}
      title="Candidates that do not rest" />
  </dl>`;
}

// What the page does not see, each with a word and not by a colour alone.
export function Blind() {
  const missing = runs.value?.missing ?? [];
  const alone = runs.value?.replicas === "lost";
  const { all, owners } = frozen.value;
  const lines = [];
  if (stream.value === false) lines.push("The stream of events is not connected: the list is read every 2 s instead.");
  if (behind.value) lines.push(`The list is old: ${behind.value}`);
  if (lost.value) lines.push(`${plural(lost.value, "event")} came too fast and got lost; the list was read again.`);
  if (missing.length) lines.push(`${plural(missing.length, "replica")} silent: ${missing.join(", ")}. Their runs are not below.`);
  if (alone) lines.push("The store of the replicas does not answer: only the runs of this gateway are below.");
  return html`<div class="blind">
    ${lines.map((line) => html`<p class="warning" role="status"><span aria-hidden="true">⚠ </span>${line}</p>`)}
    ${(all || owners.length > 0) && html`<div class="warning frozen" role="status">
      <span><span aria-hidden="true">❄ </span>New runs are refused: ${all ? "of all owners" : ""}${all && owners.length ? ", and by themselves " : ""}</span>
      ${owners.map((owner) => html`<button key=${owner} onClick=${() => thaw(owner)}>Thaw <bdi>${owner}</bdi></button>`)}
      ${all && html`<button onClick=${() => thaw()}>Thaw all</button>`}
    </div>`}
    ${notice.value && html`<p class="done" role="status">${notice.value.text}
      <button class="plain" aria-label="Close the message" onClick=${() => { notice.value = null; }}>×</button></p>`}
  </div>`;
}

export function Seen() {
  const list = runs.value;
  const state = stream.value ? "● live" : stream.value === false ? "○ not live" : "○ connecting";
  const replicas = typeof list?.replicas === "number" ? `, ${plural(list.replicas, "replica")}` : "";
  return html`<p class="seen">
    <span class=${stream.value ? "good" : "warn"}>${state}</span>
    <span class="quiet">${plural(lost.value, "event")} lost${replicas}</span>
  </p>`;
}

export function Bar() {
  return html`<div class="bar">
    <button onClick=${endMany}>End many…</button>
    ${!frozen.value.all && html`<button onClick=${() => freeze()}>Freeze…</button>`}
    ${hasToken() && html`<button onClick=${forgetToken}>Forget the token</button>`}
  </div>`;
}

function Candidate({ candidate: it }) {
  const rests = it.state !== "up";
  const classes = Object.entries(it.failures_by_class ?? {});
  const why = classes.map(([name, n]) => `${words(name)} ${n}`).join(", ");
  return html`<li class="candidate">
    <span class="name" title=${it.candidate}><bdi>${it.candidate}</bdi></span>
    <span class=${rests ? "state bad" : "state good"}>
      ${rests ? `rests ${duration(it.left_ms)}: ${words(it.class)}` : "up"}
    </span>
    ${rests && html`<button onClick=${() => clearCooldown(it.candidate)}>Clear…</button>`}
    <span class="share quiet">
      ${it.attempts ? html`<span class=${it.failures ? "bad" : ""}>${percent(it.failures, it.attempts)} of ${amount(it.attempts)} failed</span>` : "not asked"}
      ${why && html` (${why})`}
      ${it.first_content_p50_ms != null && html`, first token ${duration(it.first_content_p50_ms)}`}
    </span>
  </li>`;
}

// Those that need a look come first: resting, then failing, then busy.
const urgency = (it) => (it.state === "up" ? 0 : 2) + (it.attempts ? it.failures / it.attempts : 0);

export function Candidates() {
  const [showsAll, setShowsAll] = useState(false);
  const sorted = [...candidates.value].sort((a, b) => urgency(b) - urgency(a) || b.attempts - a.attempts);
  const active = sorted.filter((it) => it.attempts || it.state !== "up");
  const shown = showsAll || !active.length ? sorted : active;
  const rest = sorted.length - shown.length;
  return html`<section class="candidates" aria-labelledby="candidates-title">
    <h2 id="candidates-title">Candidates <small>of the last 5 minutes</small></h2>
    <ul>${shown.map((it) => html`<${Candidate} key=${it.candidate} candidate=${it} />`)}</ul>
    ${rest > 0 && html`<button class="plain" onClick=${() => setShowsAll(true)}>${rest} more, up and not asked</button>`}
  </section>`;
}
