// The question before an action: it names how much the action touches, and asks once.

import { html, useLayoutEffect, useRef } from "./html.js";
import { isolated } from "./format.js";
import { asked, notice, readSoon, readRestNow } from "./state.js";

// How long the page says what was done.
const TOLD = 20_000;

// Asks about an action:
// - `title`, `subject`, the name of what it is about, if it has one, and `button`, a function of the count;
// - `fields`: name, label, hint, and `kind` ("text" or "checkbox") of each value that a person types;
// - `count(values)`: finds out what the action would touch: `{ count, text, examples }`;
// - `countsFields`: whether the fields say what it touches. Then a change of them needs a new count;
// - `recounts`: whether it counts again before it acts, as what fits may be more by then;
// - `act(values)`: does it, and returns what was done, as a sentence.
export function ask(action) {
  const values = { ...action.values };
  asked.value = { ...action, values, found: null, error: null, busy: false };
  if (!action.countsFields || Object.keys(values).length) count();
}

// Says what was done, for a while.
function tell(text, isBad = false) {
  const told = { text, isBad };
  notice.value = told;
  setTimeout(() => { if (notice.value === told) notice.value = null; }, TOLD);
}

function change(changes) {
  if (asked.value) asked.value = { ...asked.value, ...changes };
}

async function attempt(task) {
  const before = asked.value;
  // The question may have been closed meanwhile, and another one be open.
  const isOpen = () => asked.value?.act === before.act;
  change({ busy: true, error: null });
  try {
    const done = await task(before, isOpen);
    // A count is of the values that it was asked for.
    const isOld = before.countsFields && asked.value?.values !== before.values;
    if (isOpen()) change({ busy: false, ...(isOld ? {} : done) });
  } catch (error) {
    if (isOpen()) change({ busy: false, error: error.message });
    else if (task === carryOut) tell(`${before.title} ${error.message}`, true);
  }
}

const count = () => attempt(async ({ count, values }) => ({ found: await count(values) }));

async function carryOut({ act, count, found, recounts, subject, values }, isOpen) {
  if (recounts) {
    const now = await count(values);
    if (now.count !== found.count) return { found: now, error: `The number has changed: it was ${found.count}.` };
  }
  const done = await act(values);
  tell(subject ? `${isolated(subject)}: ${done}` : done);
  if (isOpen()) close();
  readSoon(0);
  readRestNow();
}

const act = () => attempt(carryOut);

// An element that closes gives the focus back; one that is taken away does not.
// The browser tells of a close in a later frame, when the next question may already be open: `onClose`.
function close() {
  document.querySelector("dialog[open]")?.close();
  asked.value = null;
}

function type(name, value) {
  const values = { ...asked.value.values, [name]: value };
  change({ values, ...(asked.value.countsFields ? { found: null } : {}) });
}

function Field({ field, value }) {
  const id = `field-${field.name}`;
  const isBox = field.kind === "checkbox";
  const on = (event) => type(field.name, isBox ? event.target.checked : event.target.value.trim());
  return html`<div class=${isBox ? "field box" : "field"}>
    <label for=${id}>${field.label}</label>
    ${isBox
      ? html`<input id=${id} type="checkbox" checked=${value === true} onChange=${on} />`
      : html`<input id=${id} type="text" autocomplete="off" spellcheck=${false}
          placeholder=${field.hint ?? ""} value=${value ?? ""} onInput=${on} />`}
  </div>`;
}

function Found({ found }) {
  return html`<div class="found" role="status">
    <p><strong>${found.text}</strong></p>
    ${found.examples?.length > 0 && html`<ul class="examples">
      ${found.examples.map((it) => html`<li><bdi>${it}</bdi></li>`)}
      ${found.count > found.examples.length && html`<li>and ${found.count - found.examples.length} more</li>`}
    </ul>`}
  </div>`;
}

export function Dialog() {
  const element = useRef(null);
  const question = asked.value;
  useLayoutEffect(() => {
    if (question && !element.current.open) element.current.showModal();
  });
  if (!question) return null;
  const { title, subject, text, fields = [], values, found, error, busy, button, isHarmless } = question;
  const submit = (event) => {
    event.preventDefault();
    if (found?.count > 0) act();
    else if (!found) count();
  };
  const onClose = ({ target }) => {
    if (target.isConnected && !target.open) asked.value = null;
  };
  return html`<dialog ref=${element} aria-labelledby="dialog-title" onClose=${onClose}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      ${subject && html`<p class="subject"><bdi>${subject}</bdi></p>`}
      ${text && html`<p>${text}</p>`}
      ${fields.map((field) => html`<${Field} key=${field.name} field=${field} value=${values[field.name]} />`)}
      ${found && html`<${Found} found=${found} />`}
      ${error && html`<p class="bad" role="alert">${error}</p>`}
      <div class="buttons">
        <button type="button" onClick=${close}>Cancel</button>
        ${found?.count > 0
          ? html`<button class=${isHarmless ? "main" : "danger"} disabled=${busy}>${button(found.count)}</button>`
          : html`<button class="main" disabled=${busy || found}>${busy ? "Counting" : "Count first"}</button>`}
      </div>
    </form>
  </dialog>`;
}
