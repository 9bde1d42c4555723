// The table of runs, its order, and what it shows.

import { html } from "./html.js";
import { endRun } from "./actions.js";
import { amount, cost, duration, isolated, nearestLimit, plural, silenceOf, stateOf, tokensOf } from "./format.js";
import { PAGE, ends, query, runs, select, selected, show, totals } from "./state.js";

// The columns; `sort` is an order of GET /runs, in which the gateway sorts all of its runs.
const COLUMNS = [
  { name: "Run", kind: "w-17" },
  { name: "State", kind: "w-12" },
  { name: "Owner", kind: "w-8", hint: "The name of the caller's key, which is its agent's name in [agents]" },
  { name: "Session", kind: "w-12 spare" },
  { name: "Candidate", kind: "w-10" },
  { name: "Turns", sort: "turns", kind: "w-5 number" },
  { name: "Tokens", kind: "w-6 number spare" },
  { name: "Cost", sort: "spent", kind: "w-8 number" },
  { name: "Age", sort: "oldest", kind: "w-6 number" },
  { name: "Silent", sort: "silent", kind: "w-6 number" },
  { name: "Nearest limit", kind: "w-10" },
];

const SORTS = [
  ["silent", "silent for longest, idle last"], ["spent", "most spent"], ["turns", "most turns"],
  ["oldest", "oldest"], ["started", "newest"],
];

const keyOf = (run) => `${run.replica ?? ""}/${run.owner}/${run.run}/${run.generation}`;

function Text({ children }) {
  const text = children ?? "-";
  return html`<span class="cut" title=${text}><bdi>${text}</bdi></span>`;
}

// An id that is cut keeps its end, by which ids of one make differ.
function Id({ children: id }) {
  if (!/^[!-~]{18,}$/.test(id)) return html`<${Text}>${id}<//>`;
  return html`<span class="cut both-ends" title=${id}><span class="head">${id.slice(0, -8)}</span><span class="tail">${id.slice(-8)}</span></span>`;
}

const ofCap = (used, cap, write) => (cap == null ? write(used) : `${write(used)}/${write(cap)}`);

function Row({ run, isSelected }) {
  const state = stateOf(run);
  const limit = nearestLimit(run);
  const caps = run.token_caps ?? {};
  const tries = run.attempts > 1 ? ` ×${run.attempts}` : "";
  const onKey = (event) => {
    if (event.key === "Enter") select(run);
    if (event.key === "Delete" && !run.reason) endRun(run.run);
    const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (!next) return;
    event.preventDefault();
    event.currentTarget[next]?.focus();
  };
  const onEnd = (event) => {
    event.stopPropagation();
    endRun(run.run);
  };
  return html`<tr tabindex="0" class=${isSelected ? "selected" : ""} aria-current=${isSelected ? "true" : undefined}
      data-run=${run.run} onClick=${() => select(run)} onKeyDown=${onKey}>
    <td data-name="Run" class="id"><${Id}>${run.run}<//>${run.replica && html`<small class="quiet"> at <bdi>${run.replica}</bdi></small>`}</td>
    <td data-name="State" class="whole"><span class="state ${state.tone}">${state.text}</span></td>
    <td data-name="Owner"><${Text}>${run.owner}<//></td>
    <td data-name="Session" class="spare"><${Text}>${run.session}<//></td>
    <td data-name="Candidate"><${Text}>${run.candidate && run.candidate + tries}<//></td>
    <td data-name="Turns" class="number">${ofCap(run.turns, run.max_turns, String)}</td>
    <td data-name="Tokens" class="number spare">${ofCap(tokensOf(run), caps.max_total_tokens, amount)}</td>
    <td data-name="Cost" class="number">${ofCap(run.spent?.cost, caps.max_cost, cost)}</td>
    <td data-name="Age" class="number">${duration(run.elapsed_ms)}</td>
    <td data-name="Silent" class="number">${run.reason ? "-" : duration(silenceOf(run))}</td>
    <td data-name="Nearest limit" class="whole last">${limit ? html`<span class=${limit.near ? "near" : ""}>${limit.near ? "! " : ""}${limit.text}</span>` : "-"}
      ${!run.reason && html`<button class="row-end" tabindex="-1" aria-label=${`End the run ${isolated(run.run)}`} onClick=${onEnd}>End…</button>`}</td>
  </tr>`;
}

function Head({ column }) {
  const { sort } = query.value;
  if (!column.sort) return html`<th scope="col" class=${column.kind} title=${column.hint}>${column.name}</th>`;
  const isSorted = sort === column.sort;
  return html`<th scope="col" class=${column.kind} aria-sort=${isSorted ? "descending" : "none"}>
    <button class="plain" title="Sort by it, the greatest first"
      onClick=${() => show({ sort: column.sort })}>${column.name}${isSorted ? " ▼" : ""}</button></th>`;
}

// A reason as the page writes it, or as the gateway does.
const wireName = (text) => text.toLowerCase().replaceAll(" ", "_");

const reasonsOf = (minutes) => [...new Set(minutes.flatMap((it) => Object.keys(it.ends)))].sort();

function Filters() {
  const now = query.value;
  const text = (name, label, read = (it) => it, list) => html`<label class="filter">${label}
    <input type="search" value=${now[name]} autocomplete="off" spellcheck=${false} placeholder="whole, then Enter" list=${list}
      onChange=${(event) => show({ [name]: read(event.target.value.trim()) })} /></label>`;
  const choice = (name, label, options, more = {}) => html`<label class="filter">${label}
    <select value=${now[name]} onChange=${(event) => show({ ...more, [name]: event.target.value })}>
      ${options.map(([value, title]) => html`<option value=${value} selected=${now[name] === value}>${title}</option>`)}
    </select></label>`;
  return html`<form class="filters" role="search" onSubmit=${(event) => event.preventDefault()}>
    ${choice("state", "state", [["open", "open"], ["ended", "ended, 10 minutes"], ["", "all"]], { reason: "" })}
    ${choice("sort", "order", SORTS)}
    ${text("owner", "owner")}${text("session", "session")}${text("candidate", "candidate")}
    ${now.state !== "open" && html`${text("reason", "reason", wireName, "reasons")}
      <datalist id="reasons">${reasonsOf(ends.value).map((it) => html`<option value=${it} />`)}</datalist>`}
  </form>`;
}

function Pages({ shown }) {
  const { sort, after, state } = query.value;
  const { next } = runs.value;
  const { open } = totals.value;
  const of = state === "open" && open > shown ? ` of ${open} open` : "";
  if (sort !== "started") {
    const more = shown === PAGE ? `The first ${PAGE}${of} in this order. Others: name their owner, session or candidate, or choose the order "newest" to turn pages.` : plural(shown, "run");
    return html`<p class="pages quiet">${more}</p>`;
  }
  return html`<p class="pages quiet">
    ${after.length > 0 && html`<button onClick=${() => show({ after: after.slice(0, -1) })}>Newer</button>`}
    <span>Page ${after.length + 1}: ${plural(shown, "run")}${of}</span>
    ${next && html`<button onClick=${() => show({ after: [...after, next] })}>Older</button>`}
  </p>`;
}

export function Runs() {
  const list = runs.value;
  const isIt = (run) => selected.value?.run === run.run && selected.value?.owner === run.owner;
  return html`<section class="runs" aria-labelledby="runs-title">
    <h2 id="runs-title">Runs</h2>
    <${Filters} />
    <div class="scroll">
      <table class="table">
        <thead><tr>${COLUMNS.map((column) => html`<${Head} key=${column.name} column=${column} />`)}</tr></thead>
        <tbody>${list?.runs.map((run) => html`<${Row} key=${keyOf(run)} run=${run} isSelected=${isIt(run)} />`)}</tbody>
      </table>
      ${list?.runs.length === 0 && html`<p class="quiet empty">No run fits.</p>`}
    </div>
    ${list && html`<${Pages} shown=${list.runs.length} />`}
  </section>`;
}
