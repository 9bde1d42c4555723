// The panel of one run: why it ended, its attempts, its children, and what can be done.

import { html, useEffect, useRef, useState } from "./html.js";
import { endAll, endRun, extend, freeze, pause, resume, thaw } from "./actions.js";
import { get } from "./api.js";
import { amount, cost, duration, isolated, plural, sentence, silenceOf, stateOf, tokensOf } from "./format.js";
import { detail, frozen, select, selected } from "./state.js";
import { Timeline } from "./timeline.js";

const CHILDREN = 200;
const CHILDREN_EVERY = 5000;

function Fact({ name, children }) {
  return html`<div><dt>${name}</dt><dd><bdi>${children}</bdi></dd></div>`;
}

const ofCap = (used, cap, write) => (cap == null ? write(used) : `${write(used)} of ${write(cap)}`);

function Facts({ run }) {
  const caps = run.token_caps ?? {};
  const { deadlines = {} } = run;
  const clocks = [["step", "step_ms"], ["ceiling", "ceiling_ms"], ["timeout", "timeout_ms"]]
    .filter(([, key]) => deadlines[key] != null)
    .map(([name, key]) => `${name} in ${duration(deadlines[key])}`);
  const step = run.last_step && [run.last_step.kind.replaceAll("_", " "), run.last_step.description];
  return html`<dl class="facts">
    <${Fact} name="owner">${run.owner ?? "-"}<//>
    <${Fact} name="session">${run.session ?? "-"}<//>
    ${run.parent && html`<${Fact} name="parent">${run.parent}<//>`}
    ${run.replica && html`<${Fact} name="replica">${run.replica}<//>`}
    <${Fact} name="turns">${ofCap(run.turns, run.max_turns, String)}<//>
    <${Fact} name="tokens">${ofCap(tokensOf(run) ?? 0, caps.max_total_tokens, amount)}<//>
    ${caps.max_output_tokens != null
      && html`<${Fact} name="output tokens">${ofCap(run.spent?.output_tokens ?? 0, caps.max_output_tokens, amount)}<//>`}
    <${Fact} name="cost">${ofCap(run.spent?.cost ?? 0, caps.max_cost, cost)}<//>
    <${Fact} name="age">${duration(run.elapsed_ms)}<//>
    ${!run.reason && html`<${Fact} name="silent for">${duration(silenceOf(run))}<//>`}
    ${clocks.length > 0 && html`<${Fact} name="limits">${clocks.join(", ")}<//>`}
    ${step && html`<${Fact} name="last step">${step.filter(Boolean).join(": ")}<//>`}
    ${run.errors > 0 && html`<${Fact} name="errors">${run.errors}<//>`}
    ${run.paused && html`<${Fact} name="paused">for ${duration(run.paused.since_ms)}, ${plural(run.paused.held, "turn")} held<//>`}
    ${run.last_check && html`<${Fact} name="checker">${run.last_check.status}: ${run.last_check.reason}<//>`}
  </dl>`;
}

// The runs below this one. No route lists children, so that they are sought in the run's session.
function Children({ run }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    let ended = false;
    const read = async () => {
      const parameters = new URLSearchParams({ limit: CHILDREN, replicas: "all" });
      if (run.session) parameters.set("session", run.session);
      try {
        const { runs } = await get(`runs?${parameters}`);
        if (!ended) setFound(runs.filter((it) => it.parent === run.run));
      } catch {
        // The list says that the gateway does not answer.
      }
    };
    read();
    const every = setInterval(read, CHILDREN_EVERY);
    return () => {
      ended = true;
      clearInterval(every);
    };
  }, [run.run, run.session]);
  if (!found) return html`<p class="quiet">Reading.</p>`;
  if (!found.length) return html`<p class="quiet">None ${run.session ? "in its session" : `among the newest ${CHILDREN} runs`}.</p>`;
  return html`<ul class="children">${found.map((it) => html`<li key=${it.run}>
    <button class="plain" onClick=${() => select(it)}><bdi>${it.run}</bdi></button> ${stateOf(it).text}
  </li>`)}</ul>`;
}

function Buttons({ run, isOpen }) {
  const { owner, session } = run;
  const isFrozen = frozen.value.owners.includes(owner);
  return html`<div class="buttons">
    ${isOpen && html`
      <button class="danger" onClick=${() => endRun(run.run)}>End…</button>
      ${run.paused?.suspended
        ? html`<button onClick=${() => resume(run.run)}>Resume…</button>`
        : html`<button onClick=${() => pause(run.run)}>Pause…</button>`}
      <button class=${run.paused?.cap ? "main" : ""} onClick=${() => extend(run.run, run.paused ?? {})}>Extend…</button>`}
    ${session && html`<button onClick=${() => endAll(`End the open runs of the session ${isolated(session)}?`, { session })}>End its session…</button>`}
    ${owner && html`<button onClick=${() => endAll(`End the open runs of ${isolated(owner)}?`, { owner })}>End its owner's…</button>`}
    ${owner && (isFrozen
      ? html`<button onClick=${() => thaw(owner)}>Thaw its owner…</button>`
      : html`<button onClick=${() => freeze(owner)}>Freeze its owner…</button>`)}
  </div>`;
}

// Closes the panel; the focus goes back to the row, from where the arrows lead on.
export function closeRun() {
  const row = document.querySelector("tr.selected");
  select(null);
  row?.focus();
}

export function RunPanel() {
  const element = useRef(null);
  const id = selected.value?.run;
  const ended = detail.value?.run.reason;
  useEffect(() => element.current?.focus(), [id]);
  // The button that had the focus may be gone with the run.
  useEffect(() => {
    if (document.activeElement === document.body) element.current?.focus();
  }, [ended]);
  if (!detail.value) return null;
  const { run, others, gone, isUnknown } = detail.value;
  const isOpen = !run.reason && !isUnknown;
  const state = isOpen || run.reason ? stateOf(run) : { text: "unknown", tone: "warn" };
  return html`<aside class="panel" tabindex="-1" ref=${element} aria-labelledby="run-title">
    <header>
      <h2 id="run-title"><bdi>${run.run}</bdi></h2>
      <button class="plain close" aria-label="Close the run (Escape)" onClick=${closeRun}>×</button>
    </header>
    <p><span class="state ${state.tone}">${state.text}</span></p>
    ${gone && html`<p class="warning" role="status">${gone}</p>`}
    ${others > 0 && html`<p class="warning">${plural(others, "other owner")} ${others === 1 ? "uses" : "use"} this id, too.</p>`}
    ${(isOpen || run.reason) && html`<p class="sentence"><bdi>${sentence(run)}</bdi></p>`}
    <${Buttons} run=${run} isOpen=${isOpen} />
    <h3>Attempts</h3>
    <${Timeline} run=${run} />
    <h3>Sub-agents</h3>
    <${Children} run=${run} />
    <h3>Facts</h3>
    <${Facts} run=${run} />
  </aside>`;
}
