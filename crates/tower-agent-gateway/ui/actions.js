// What an operator can do. Each asks first, with the number of what it touches: see dialog.js.

import { ask } from "./dialog.js";
import { get, path, post, put, remove } from "./api.js";
import { duration, isolated, plural } from "./format.js";
import { frozen } from "./state.js";

// The most ids that a question lists.
const EXAMPLES = 5;

const runs = (n) => plural(n, "run");

// The runs of one id: each owner may have one.
async function runsOf(id) {
  const answer = await get(path`runs/${id}`);
  return answer.runs ?? [answer];
}

async function countOpen(id, what) {
  const open = (await runsOf(id)).filter((run) => !run.reason);
  const calls = open.reduce((sum, run) => sum + (run.work ?? []).filter((it) => it.kind === "call").length, 0);
  const owners = open.length > 1 ? " Several owners use this id, and it means all of them." : "";
  const text = open.length
    ? `${what} ${runs(open.length)}, with ${plural(calls, "call")} in flight.${owners}`
    : "The run has ended already.";
  return { count: open.length, text };
}

// What `POST /abort` would end.
async function countBulk(selector) {
  const answer = await post("abort", { ...selector, dry_run: true });
  const silent = answer.missing?.length ? ` Replicas that did not answer: ${answer.missing.join(", ")}.` : "";
  return {
    count: answer.count,
    text: answer.count ? `Ends ${runs(answer.count)}.${silent}` : `No open run fits.${silent}`,
    examples: answer.runs.slice(0, EXAMPLES).map((run) => run.run),
  };
}

const endBulk = async (selector) => `Ended ${runs((await post("abort", selector)).count)}.`;

export function endRun(id) {
  ask({
    title: "End this run?",
    subject: id,
    text: "Its calls stop at once, and its sub-agents with it. Its caller gets the reason aborted.",
    count: () => countOpen(id, "Ends"),
    button: (n) => `End ${runs(n)}`,
    act: async () => {
      const { aborted } = await post(path`runs/${id}/abort`);
      return aborted ? "Ended the run." : "The run had ended before.";
    },
  });
}

// Ends all open runs that fit, as of a session or an owner.
export function endAll(title, selector) {
  ask({
    title,
    recounts: true,
    count: () => countBulk(selector),
    button: (n) => `End ${runs(n)}`,
    act: () => endBulk(selector),
  });
}

export function endMany() {
  const selector = ({ all, ...texts }) => {
    const given = Object.entries(texts).filter(([, value]) => value);
    return { ...Object.fromEntries(given), ...(all ? { all: true } : {}) };
  };
  ask({
    title: "End many runs",
    text: "A run must fit all that is filled in. First count, then end.",
    fields: [
      { name: "owner", label: "Owner (agent)", hint: "the name of its key" },
      { name: "session", label: "Session" },
      { name: "candidate", label: "Candidate that it asks now" },
      { name: "older_than", label: "Open for longer than", hint: "1h" },
      { name: "all", label: "All open runs", kind: "checkbox" },
    ],
    countsFields: true,
    recounts: true,
    count: (values) => countBulk(selector(values)),
    button: (n) => `End ${runs(n)}`,
    act: (values) => endBulk(selector(values)),
  });
}

export function pause(id) {
  ask({
    title: "Pause this run?",
    subject: id,
    text: "Its next turn waits. A call that is in flight goes on, and so does the ceiling's clock.",
    count: () => countOpen(id, "Pauses"),
    button: (n) => `Pause ${runs(n)}`,
    isHarmless: true,
    act: async () => {
      const { paused } = await post(path`runs/${id}/pause`);
      return paused ? "Paused the run." : "The run was paused before, or has ended.";
    },
  });
}

export function resume(id) {
  ask({
    title: "Let this run go on?",
    subject: id,
    text: "A pause by hand ends. A pause at a cap ends when the cap is raised.",
    count: () => countOpen(id, "Resumes"),
    button: (n) => `Resume ${runs(n)}`,
    isHarmless: true,
    act: async () => {
      const { resumed } = await post(path`runs/${id}/resume`);
      return resumed ? "The run goes on." : "The run was not paused by hand.";
    },
  });
}

export function extend(id, { cap } = {}) {
  const number = (text, name) => {
    if (!text) return undefined;
    const value = Number(text);
    if (!Number.isFinite(value) || value <= 0) throw new Error(`${name}: not a number above 0`);
    return value;
  };
  ask({
    title: "Raise the caps of this run",
    subject: id,
    text: "Each is added to its cap; a run that is at the cap gets so much from its present use.",
    fields: [
      { name: "turns", label: "Turns", hint: "10" },
      { name: "cost", label: "Cost", hint: "2.5" },
      { name: "tokens", label: "Tokens", hint: "50000" },
      { name: "time", label: "Time", hint: "10m" },
      { name: "why", label: "Why (for the log)" },
    ],
    values: cap === "turns" ? { turns: "10" } : {},
    count: () => countOpen(id, "Raises the caps of"),
    button: (n) => `Extend ${runs(n)}`,
    isHarmless: true,
    act: async ({ turns, cost, tokens, time, why }) => {
      const body = {
        turns: number(turns, "Turns"),
        cost: number(cost, "Cost"),
        tokens: number(tokens, "Tokens"),
        time: time || undefined,
        why: why || undefined,
      };
      const { extended } = await post(path`runs/${id}/extend`, body);
      return extended ? "Raised the caps of the run." : "The run has ended, or has no such cap.";
    },
  });
}

// Keeps new runs out, of one owner or of all.
export function freeze(owner) {
  ask({
    title: owner ? `Keep new runs of ${isolated(owner)} out?` : "Keep all new runs out?",
    text: "New runs get a 503 that says frozen. Open runs go on; end them by themselves.",
    count: async () => {
      const selector = owner ? { owner } : { all: true };
      const { count } = await post("abort", { ...selector, dry_run: true });
      return { count: 1, text: `Freezes ${owner ? "1 owner" : "all owners"}. ${runs(count)} that ${count === 1 ? "is" : "are"} open will go on.` };
    },
    button: () => (owner ? "Freeze 1 owner" : "Freeze all owners"),
    act: async () => {
      frozen.value = await put(owner ? path`freeze/${owner}` : "freeze");
      return owner ? `New runs of ${isolated(owner)} are refused.` : "All new runs are refused.";
    },
  });
}

export function thaw(owner) {
  ask({
    title: owner ? `Admit new runs of ${isolated(owner)} again?` : "Admit new runs again?",
    count: async () => {
      const now = await get("freeze");
      const is = owner ? now.owners.includes(owner) : now.all;
      const others = !owner && now.owners.length ? ` ${plural(now.owners.length, "owner")} that ${now.owners.length === 1 ? "was" : "were"} frozen alone will stay so.` : "";
      const text = is ? `Thaws ${owner ? "1 owner" : "all owners"}.${others}` : "It is not frozen any more.";
      return { count: is ? 1 : 0, text };
    },
    button: () => (owner ? "Thaw 1 owner" : "Thaw all owners"),
    isHarmless: true,
    act: async () => {
      frozen.value = await remove(owner ? path`freeze/${owner}` : "freeze");
      return "New runs are admitted again.";
    },
  });
}

export function clearCooldown(candidate) {
  ask({
    title: `End the rest of ${isolated(candidate)}?`,
    text: "The next call may ask it again.",
    count: async () => {
      const { cooldowns } = await get("cooldowns");
      const its = cooldowns.filter((it) => it.candidate === candidate);
      const longest = Math.max(0, ...its.map((it) => it.left_ms));
      const text = its.length
        ? `Ends ${plural(its.length, "cooldown")} of 1 candidate, with ${duration(longest)} left.`
        : "It rests no more.";
      return { count: its.length, text };
    },
    button: (n) => `End ${plural(n, "cooldown")}`,
    isHarmless: true,
    act: async () => {
      const { cleared } = await post(path`cooldowns/${candidate}/clear`);
      return cleared ? "Ended the cooldown." : "It had ended before.";
    },
  });
}
