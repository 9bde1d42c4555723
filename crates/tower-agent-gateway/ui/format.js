// How numbers and times are written.

export function duration(ms) {
  if (ms == null) return "-";
  if (ms < 950) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 60) return `${Math.round(s)} s`;
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h ${two((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d ${Math.floor((s % 86400) / 3600)}h`;
}

export function amount(n) {
  if (n == null) return "-";
  if (n < 10_000) return String(Math.round(n));
  if (n < 1_000_000) return `${(n / 1000).toFixed(1)} k`;
  return `${(n / 1_000_000).toFixed(1)} M`;
}

export function cost(n) {
  if (n == null) return "-";
  if (n === 0) return "0";
  return n < 1 ? n.toFixed(4) : n.toFixed(2);
}

export function percent(part, whole) {
  return whole > 0 ? `${Math.round((100 * part) / whole)} %` : "-";
}

export function plural(n, one, many = `${one}s`) {
  return `${n} ${n === 1 ? one : many}`;
}

// A name that others chose, within a sentence: what it says about the direction of text ends with it.
export function isolated(name) {
  return `\u2068${name}\u2069`;
}

// A wire name such as `turn_cap_reached` in words.
export function words(name) {
  return String(name ?? "").replaceAll("_", " ");
}

export function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString([], { hour12: false });
}

// All tokens that a run has used.
export function tokensOf(run) {
  const spent = run.spent;
  if (!spent) return null;
  return spent.input_tokens + spent.cached_input_tokens + spent.output_tokens;
}

export function silenceOf(run) {
  return run.progress?.last_change_ago_ms ?? run.elapsed_ms;
}

// What a run is doing, in a word, and how much it needs a person: `good`, `warn`, `bad`, or nothing.
export function stateOf(run) {
  if (run.reason) return { text: words(run.reason), tone: run.reason === "completed" ? "good" : "bad" };
  if (run.paused) {
    const { cap } = run.paused;
    return { text: cap ? `paused: cap on ${words(cap)}` : "paused by hand", tone: "warn" };
  }
  if (run.closing) return { text: `closing: ${words(run.closing)}`, tone: "warn" };
  const check = run.last_check?.status;
  if (check === "looping" || check === "stuck") return { text: check, tone: "bad" };
  if (run.stuck) return { text: "looks stuck", tone: "bad" };
  if (run.in_flight === 0) return { text: "idle", tone: "" };
  if (!run.alive) return { text: "silent", tone: "warn" };
  return { text: "working", tone: "good" };
}

// A clock with less left, in ms, is near.
const NEAR = 10_000;

// The limit that a run meets first: a clock, or a cap of which it has used the most.
export function nearestLimit(run) {
  if (run.reason) return null;
  const clocks = [["step", "step_ms"], ["ceiling", "ceiling_ms"], ["timeout", "timeout_ms"]]
    .map(([name, key]) => ({ name, left: run.deadlines?.[key] }))
    .filter((it) => it.left != null);
  const caps = [];
  const cap = (name, used, most) => most > 0 && caps.push({ name, part: used / most });
  cap("turns", run.turns, run.max_turns);
  cap("cost", run.spent?.cost ?? 0, run.token_caps?.max_cost);
  cap("output tokens", run.spent?.output_tokens ?? 0, run.token_caps?.max_output_tokens);
  cap("tokens", tokensOf(run) ?? 0, run.token_caps?.max_total_tokens);
  const fullest = caps.sort((a, b) => b.part - a.part)[0];
  const soonest = clocks.sort((a, b) => a.left - b.left)[0];
  if (fullest && fullest.part >= 0.5 && !(soonest?.left < NEAR && fullest.part < 0.8)) {
    return { text: `${fullest.name} at ${Math.round(100 * fullest.part)} %`, near: fullest.part >= 0.8 };
  }
  if (!soonest) return fullest && { text: `${fullest.name} at ${Math.round(100 * fullest.part)} %` };
  return { text: `${soonest.name} in ${duration(soonest.left)}`, near: soonest.left < NEAR };
}

// Why a run ended, or what it does now, in one sentence.
export function sentence(run) {
  const also = run.also?.length ? ` Later reasons changed nothing: ${run.also.map(words).join(", ")}.` : "";
  const turns = run.turns ? ` and ${plural(run.turns, "turn")}` : "";
  if (run.reason) {
    const after = ` after ${duration(run.elapsed_ms)}${turns}`;
    const last = run.attempts_of_late?.at(-1);
    const failed = run.reason === "completed" && last?.class
      ? ` Its last attempt failed: ${words(last.class)}${last.status ? ` ${last.status}` : ""}.` : "";
    const why = run.message ? `: ${isolated(run.message)}` : "";
    return `Ended as ${words(run.reason)}${after}${why}${/[.!?]\u2069$/.test(why) ? "" : "."}${failed}${also}`;
  }
  const state = stateOf(run).text;
  const asks = run.candidate ? ` It asks ${isolated(run.candidate)}, attempt ${Math.max(run.attempts, 1)}.` : "";
  const limit = nearestLimit(run);
  return `Open for ${duration(run.elapsed_ms)}${turns}: ${state}.${asks}`
    + ` Nothing new for ${duration(silenceOf(run))}.${limit ? ` Nearest limit: ${limit.text}.` : ""}`;
}
