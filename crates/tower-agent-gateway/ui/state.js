// What the page knows, as signals: a part of the page that reads one is drawn anew when it changes.

import { signal, batch } from "./vendor/signals.js";
import { get, send, setToken, hasToken, path } from "./api.js";
import { follow } from "./events.js";

// The most rows that are asked for, and so in the document.
export const PAGE = 100;

// Whether the operator's routes answer: `asking`, `granted`, `token` (the form), `wrong` (the form, and
// that the token is wrong), or `refused` (without a token to ask for; `refusal` says why).
export const access = signal("asking");
export const refusal = signal("");

export const query = signal({
  state: "open", sort: "silent", owner: "", session: "", candidate: "", reason: "", after: [],
});
export const runs = signal(null); // the answer of GET /runs
export const selected = signal(null); // the id and the owner of the run in the panel
export const detail = signal(null); // the selected run, with its attempts
export const candidates = signal([]);
export const ends = signal([]);
export const frozen = signal({ all: false, owners: [] });
export const totals = signal({ open: null, tokens: null });
export const stream = signal(null); // whether the events come; null until the first answer
export const lost = signal(0);
export const behind = signal(null); // the error of the last read of the list, if it failed
export const heard = signal(null); // when the list was read last, by the browser's clock
export const renewed = signal(null); // since when another process of the gateway answers
export const notice = signal(null); // what the last action did
export const asked = signal(null); // the question before an action: see dialog.js

// The time between two reads of the list without an event, and at least after one.
const IDLE_READ = 2000;
const EVENT_READ = 150;

// The same of a tab that nobody sees.
const HIDDEN_READ = 15_000;

let feed = null;
let timer = null;
let restTimer = null;
let reading = false;
let again = false;
let due = 0;
let lastNumber = 0;

// Finds out whether the routes answer without a token, or with the one of this tab.
export async function enter(given) {
  if (given !== undefined) setToken(given);
  try {
    await get("freeze");
  } catch (error) {
    leave(error);
    return;
  }
  access.value = "granted";
  feed?.end();
  feed = follow({
    event: onEvent,
    connected() {
      stream.value = true;
      readSoon(0);
    },
    broken(error) {
      stream.value = false;
      if (error?.status === 403) leave(error);
    },
  });
  readSoon(0);
  readRest();
}

export function forgetToken() {
  setToken("");
  stop();
  access.value = "token";
}

function stop() {
  feed?.end();
  feed = null;
  clearTimeout(timer);
  clearTimeout(restTimer);
  timer = null;
  batch(() => {
    stream.value = null;
    for (const it of [runs, selected, detail, asked, notice, behind, renewed]) it.value = null;
    lost.value = 0;
  });
}

function leave(error) {
  stop();
  refusal.value = error.message;
  const asksForToken = error.status === 401 || error.message.includes("control token");
  if (!asksForToken) access.value = "refused";
  else access.value = hasToken() ? "wrong" : "token";
  if (asksForToken) setToken("");
}

function onEvent(name, data) {
  if (name === "lost") lost.value += data.events ?? 1;
  readSoon(EVENT_READ);
}

// Reads the list in `wait` ms, or earlier if it is due earlier.
export function readSoon(wait = 0) {
  const at = Date.now() + wait;
  if (reading) {
    again = true;
    return;
  }
  if (timer && due <= at) return;
  clearTimeout(timer);
  due = at;
  timer = setTimeout(read, wait);
}

function listPath() {
  const { after, ...wanted } = query.value;
  const parameters = new URLSearchParams({ limit: PAGE, replicas: "all" });
  for (const [name, value] of Object.entries(wanted)) if (value) parameters.set(name, value);
  if (after.length) parameters.set("after", after.at(-1));
  return `runs?${parameters}`;
}

async function read() {
  timer = null;
  if (access.value !== "granted") return;
  reading = true;
  again = false;
  const began = performance.now();
  const asked = query.value;
  try {
    const [list] = await Promise.all([get(listPath()), readDetail()]);
    if (asked === query.value && access.value === "granted") runs.value = list;
    // Of several gateways each may answer in turn.
    if (list.replicas === undefined) noteProcess(list.registry_sequence);
    heard.value = Date.now();
    behind.value = null;
  } catch (error) {
    if (error.status === 403) return leave(error);
    behind.value = error.message;
  } finally {
    reading = false;
  }
  // A list that costs the gateway much is read less often.
  const took = performance.now() - began;
  const isDue = again || asked !== query.value;
  const idle = document.hidden ? HIDDEN_READ : IDLE_READ;
  if (behind.value) readSoon(idle);
  else readSoon(isDue ? Math.max(EVENT_READ, took) : Math.max(idle, 5 * took));
}

// The number of its last event only grows while a gateway runs.
function noteProcess(number) {
  if (number < lastNumber) {
    renewed.value = Date.now();
    samples = [];
  }
  lastNumber = number;
}

async function readDetail() {
  const wanted = selected.value;
  if (!wanted) return;
  try {
    const answer = await get(path`runs/${wanted.run}`);
    if (wanted === selected.value) detail.value = pick(answer.runs ?? [answer], wanted);
  } catch (error) {
    if (error.status === 403) throw error;
    if (wanted === selected.value) detail.value = { ...detail.value, gone: error.message, isUnknown: error.status === 404 };
  }
}

// Of the runs of one id, which several owners may have, the one that was opened.
function pick(found, wanted) {
  const run = found.find((it) => it.owner === wanted.owner);
  if (run) return { run, others: found.length - 1 };
  return { ...detail.value, gone: "The gateway does not know this run any more.", isUnknown: true };
}

export function select(row) {
  batch(() => {
    selected.value = row && { run: row.run, owner: row.owner };
    detail.value = row && { run: row, others: 0 };
  });
  if (row) readSoon(0);
}

export function show(changed) {
  query.value = { ...query.value, after: [], ...changed };
  readSoon(0);
}

// What changes slowly: candidates, ends, who is frozen, and the counts of /metrics.
async function readRest() {
  if (access.value !== "granted") return;
  const tasks = [
    get("candidates").then((it) => { candidates.value = it.candidates; }),
    get("ends?last=60m").then((it) => { ends.value = it.minutes; }),
    get("freeze").then((it) => { frozen.value = it; }),
    readTotals(),
  ];
  await Promise.allSettled(tasks);
  // The rate needs a second sample.
  const isFirst = samples.length < 2;
  // One that was under way while the token was forgotten and given again does not go on beside the new one.
  clearTimeout(restTimer);
  restTimer = setTimeout(readRest, document.hidden ? HIDDEN_READ : isFirst ? 1200 : 3000);
}

export const readRestNow = () => Promise.allSettled([
  get("candidates").then((it) => { candidates.value = it.candidates; }),
  get("freeze").then((it) => { frozen.value = it; }),
]);

// The output tokens of the ended calls at the last reads, for the rate of the last minute.
let samples = [];

async function readTotals() {
  const text = await (await send("GET", "metrics")).text();
  let open = null;
  let output = 0;
  for (const line of text.split("\n")) {
    if (line.startsWith("agent_runs_open ")) open = Number(line.split(" ").at(-1));
    else if (line.startsWith("gen_ai_client_token_usage_sum{") && line.includes('gen_ai_token_type="output"')) {
      output += Number(line.split(" ").at(-1));
    }
  }
  const now = performance.now();
  samples = samples.filter((it) => it.at > now - 60_000);
  samples.push({ at: now, output });
  const seconds = (now - samples[0].at) / 1000;
  const tokens = seconds > 1 ? Math.max(0, output - samples[0].output) / seconds : null;
  totals.value = { open, tokens };
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && access.value === "granted") readSoon(0);
});
