// The page: the form for the token, or all the rest.

import { html, render, useEffect, useRef } from "./html.js";
import { access, behind, enter, refusal, selected } from "./state.js";
import { Dialog } from "./dialog.js";
import { Ends } from "./ends.js";
import { Bar, Blind, Candidates, Seen, Strip } from "./overview.js";
import { RunPanel, closeRun } from "./run.js";
import { Runs } from "./runs.js";

function Token() {
  const input = useRef(null);
  const isWrong = access.value === "wrong";
  useEffect(() => input.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    const given = input.current.value.trim();
    input.current.value = "";
    if (given) enter(given);
  };
  return html`<main class="gate">
    <h1>tower-agent gateway</h1>
    <form onSubmit=${submit}>
      <label for="token">The operator's token</label>
      <input id="token" ref=${input} type="password" autocomplete="off" spellcheck=${false}
        aria-invalid=${isWrong} aria-describedby="token-help" />
      <button class="main">Open</button>
      ${isWrong && html`<p class="bad" role="alert">This token is wrong.</p>`}
      <p id="token-help" class="quiet">It is the value of the variable that [control] names as token_env.
        This tab keeps it until it is closed.</p>
    </form>
  </main>`;
}

function Refused() {
  return html`<main class="gate">
    <h1>tower-agent gateway</h1>
    <p class="bad" role="alert">${refusal.value}</p>
    <button onClick=${() => enter()}>Try again</button>
  </main>`;
}

function Page() {
  return html`
    <header class=${selected.value ? "top with-panel" : "top"}><h1>tower-agent gateway</h1><${Seen} /><${Bar} /></header>
    <main class=${selected.value ? "page with-panel" : "page"}>
      <${Blind} />
      <div class=${behind.value ? "seen-last old" : "seen-last"}>
        <${Strip} />
        <div class="upstreams"><${Ends} /><${Candidates} /></div>
        <${Runs} />
      </div>
    </main>
    <${RunPanel} />
    <${Dialog} />`;
}

function App() {
  switch (access.value) {
    case "granted": return html`<${Page} />`;
    case "token":
    case "wrong": return html`<${Token} />`;
    case "refused": return html`<${Refused} />`;
    default: return html`<p class="quiet gate">Asking the gateway.</p>`;
  }
}

document.addEventListener("keydown", (event) => {
  // An open dialog closes by itself.
  if (event.key !== "Escape" || !selected.value || document.querySelector("dialog[open]")) return;
  closeRun();
});

render(html`<${App} />`, document.body);
enter();
