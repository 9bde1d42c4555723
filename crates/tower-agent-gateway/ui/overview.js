// The strip of numbers, what the page does not see, and the candidates.

import { html, useState } from "./html.js";
import { clearCooldown, endMany, freeze, thaw } from "./actions.js";
import { amount, clock, cost, duration, percent, plural, words } from "./format.js";
import { behind, candidates, forgetToken, frozen, heard, lost, notice, renewed, runs, stream, totals } from "./state.js";

// A candidate that does not rest, but fails so often, needs a look as much.
const isFailing = (it) => it.state === "up" && it.attempts >= 3 && 2 * it.failures >= it.attempts;
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
  const failing = candidates.value.filter(isFailing).length;
  const all = candidates.value.length;
  return html`<dl class="strip" aria-label="Now">
    <${Figure} name="open runs" value=${open ?? `${rows.length}`}
      title="Runs of this gateway that have not ended" />
    <${Figure} name="output tokens / s" value=${tokens == null ? "-" : tokens.toFixed(1)}
      title="Output tokens that upstreams reported for the calls that ended in the last minute, at this gateway" />
    <${Figure} name=${`cost of the ${plural(rows.length, "run")} below`} value=${cost(spent)}
      title="By the prices of the candidates. The gateway has no route for the cost of a day" />
    <${Figure} name=${failing ? `candidates up, ${failing} of them failing` : "candidates up"} value=${html`${up} of ${all}`}
      title="Candidates that do not rest. One fails if at least half of its attempts did" />
  </dl>`;
}

// What the page does not see, each with a word and not by a color alone.
export function Blind() {
  const missing = runs.value?.missing ?? [];
  const alone = runs.value?.replicas === "lost";
  const { all, owners } = frozen.value;
  const lines = [];
  if (behind.value) {
    const since = heard.value ? ` What is shown is of ${clock(heard.value)}.` : "";
    lines.push(`The list is old: ${behind.value}${since}`);
  } else if (stream.value === false) {
    lines.push("The stream of events is not connected: the list is read every 2 s instead.");
  }
  if (renewed.value) lines.push(`Another process of the gateway answers since ${clock(renewed.value)}: what was before is not counted below.`);
  if (lost.value) lines.push(`${plural(lost.value, "event")} came too fast and got lost; the list was read again.`);
  if (missing.length) lines.push(`${plural(missing.length, "replica")} silent: ${missing.join(", ")}. Their runs are not below.`);
  if (alone) lines.push("The store of the replicas does not answer: only the runs of this gateway are below.");
  return html`<div class="blind">
    ${lines.map((line) => html`<p class="warning" role="status"><span aria-hidden="true">⚠ </span>${line}</p>`)}
    ${(all || owners.length > 0) && html`<div class="warning frozen" role="status">
      <span><span aria-hidden="true">❄ </span>${all ? `New runs of all owners are refused${owners.length ? ", and by themselves those of:" : "."}` : "New runs are refused of the owners:"}</span>
      ${owners.map((owner) => html`<button key=${owner} onClick=${() => thaw(owner)}>Thaw <bdi>${owner}</bdi>…</button>`)}
      ${all && html`<button onClick=${() => thaw()}>Thaw all…</button>`}
    </div>`}
    ${notice.value && html`<p class=${notice.value.isBad ? "done warning" : "done"} role="status">${notice.value.text}
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
    ${!frozen.value.all && html`<button onClick=${() => freeze()}>Freeze all…</button>`}
    ${hasToken() && html`<button onClick=${forgetToken}>Forget the token</button>`}
  </div>`;
}

// Whose fault it is: the other classes are the upstream's.
const className = (name) => (name === "caller" ? "our request refused" : words(name));

function Candidate({ candidate: it }) {
  const rests = it.state !== "up";
  const classes = Object.entries(it.failures_by_class ?? {});
  const why = classes.map(([name, n]) => `${className(name)} ${n}`).join(", ");
  return html`<li class="candidate">
    <span class="name" title=${it.candidate}><bdi>${it.candidate}</bdi></span>
    <span class=${rests ? "state bad" : isFailing(it) ? "state warn" : "state good"}>
      ${rests ? `rests ${duration(it.left_ms)}: ${words(it.class)}` : isFailing(it) ? "up, but fails" : "up"}
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
const urgency = (it) => (it.state === "up" ? 0 : 2) + (isFailing(it) ? 1 : 0) + (it.attempts ? it.failures / it.attempts : 0);

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
