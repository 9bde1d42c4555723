// The plot: how many calls ended in each minute of the last hour, and as what.

import { html, useEffect, useRef, useState } from "./html.js";
import uPlot from "./vendor/uplot.js";
import { amount, words } from "./format.js";
import { ends } from "./state.js";

const MINUTES = 60;
const HEIGHT = 200;

// Reasons that are told apart at a glance; the table beside the plot names each.
const COLORS = {
  completed: "#3f9d6b", upstream_failed: "#d1495b", step_timeout: "#e08a1e", slow: "#c9a227",
  max_turn_time: "#b5651d", timeout: "#a8763e", client_disconnect: "#8893a5", aborted: "#5f6b7d",
  turn_cap_reached: "#7a5cc7", token_cap_reached: "#a46fd6", loop_detected: "#cf4f9b", stuck: "#b23a6f",
};
const OTHER = "#2f8fb3";

const colorOf = (reason) => COLORS[reason] ?? OTHER;

// For each reason, what ended in each of the last minutes; the gateway leaves out minutes without ends.
function tabulate(minutes) {
  const last = Math.max(Math.floor(Date.now() / 60_000), ...minutes.map((it) => it.began_unix_ms / 60_000));
  const first = last - MINUTES + 1;
  const times = Array.from({ length: MINUTES }, (_, at) => (first + at) * 60);
  const reasons = new Map();
  for (const minute of minutes) {
    const at = minute.began_unix_ms / 60_000 - first;
    for (const [reason, count] of Object.entries(minute.ends)) {
      if (!reasons.has(reason)) reasons.set(reason, Array(MINUTES).fill(0));
      if (at >= 0) reasons.get(reason)[at] += count;
    }
  }
  // `completed` at the bottom, and above it what is rarer, so that it is seen.
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);
  const sorted = [...reasons].map(([reason, counts]) => ({ reason, counts, total: sum(counts) }))
    .sort((a, b) => (b.reason === "completed") - (a.reason === "completed") || b.total - a.total);
  return { times, rows: sorted };
}

// Each series is drawn from zero, the highest first, so that the visible part of each is its own count.
function stack(rows) {
  const sums = Array(MINUTES).fill(0);
  return rows.map(({ counts }) => counts.map((count, at) => (sums[at] += count))).reverse();
}

function draw(element, times, rows) {
  const style = getComputedStyle(element);
  const ink = style.getPropertyValue("--quiet").trim();
  const line = style.getPropertyValue("--line").trim();
  const axis = { stroke: ink, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
  const time = (_, splits) => splits.map((at) => new Date(at * 1000).toTimeString().slice(0, 5));
  const series = [...rows].reverse().map(({ reason }) => ({
    fill: colorOf(reason), stroke: colorOf(reason), width: 0, points: { show: false },
    paths: uPlot.paths.bars({ size: [0.8], align: 0 }),
  }));
  return new uPlot({
    width: element.clientWidth, height: HEIGHT,
    legend: { show: false }, cursor: { show: false }, padding: [8, 20, 0, 0],
    scales: { x: { range: (_, min, max) => [min - 60, max + 60] }, y: { range: (_, min, max) => [0, Math.max(max, 4)] } },
    axes: [{ ...axis, values: time, space: 70, size: 26 }, { ...axis, size: 40, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000] }],
    series: [{}, ...series],
  }, [times, ...stack(rows)], element);
}

function Plot({ times, rows }) {
  const element = useRef(null);
  const seen = JSON.stringify([times[0], rows]);
  const [size, setSize] = useState(0);
  useEffect(() => {
    // A new width, and a change of light and dark, draw it anew.
    const redraw = () => setSize((it) => it + 1);
    const observer = new ResizeObserver(redraw);
    observer.observe(element.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", redraw);
    return () => {
      observer.disconnect();
      scheme.removeEventListener("change", redraw);
    };
  }, []);
  useEffect(() => {
    const plot = draw(element.current, times, rows);
    return () => plot.destroy();
  }, [seen, size]);
  return html`<div class="plot" ref=${element} role="img"
    aria-label="Ends per minute of the last hour; the table has the numbers"></div>`;
}

export function Ends() {
  // Calls that went well are many, and would flatten the others.
  const [hidden, setHidden] = useState(new Set(["completed"]));
  const { times, rows } = tabulate(ends.value);
  const toggle = (reason) => {
    const next = new Set(hidden);
    if (!next.delete(reason)) next.add(reason);
    setHidden(next);
  };
  return html`<section class="ends" aria-labelledby="ends-title">
    <h2 id="ends-title">Calls that ended <small>per minute, by reason</small></h2>
    <${Plot} times=${times} rows=${rows.filter((it) => !hidden.has(it.reason))} />
    <table class="legend">
      <thead><tr><th>reason</th><th>this minute</th><th>hour</th></tr></thead>
      <tbody>${rows.map(({ reason, counts, total }) => html`<tr key=${reason}>
        <td><button class="plain" aria-pressed=${!hidden.has(reason)} title="Show or hide it in the plot"
          onClick=${() => toggle(reason)}>
          <span class="swatch" style=${{ borderColor: colorOf(reason), background: hidden.has(reason) ? "none" : colorOf(reason) }}></span>
          ${words(reason)}${hidden.has(reason) && html`<span class="quiet"> (not drawn)</span>`}</button></td>
        <td>${amount(counts.at(-1))}</td><td>${amount(total)}</td>
      </tr>`)}</tbody>
    </table>
    ${rows.length === 0 && html`<p class="quiet">No call has ended in the last hour.</p>`}
  </section>`;
}
