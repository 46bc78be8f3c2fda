// What each chart shows: from the rows of a rank to Plotly's traces and axis. No state, no page.

import { SKIPS, number, powerOfTwo, value } from "/static/words.js";

const ZERO_EXPONENT = -150; // a log axis has no place for 0: it stands below the smallest float32
const INFINITE_EXPONENT = 128; // and none for infinity, which stands above the largest
const TICKS = 8;
const SKIP_BINS = 60;
const MANY_MARKS = 60;

/**
 * The panels by name; each takes rows and a palette and returns traces, the vertical axis,
 * and what is drawn over them.
 */
export const PANELS = { scale, skips, loss, time };

function scale(rows, colour) {
  const known = rows.filter((row) => row.scale !== null);
  if (!known.length) return { traces: [], axis: { visible: false }, annotations: [remark("no loss scaler")] };
  const heights = (column) => known.map((row) => height(row[column]));
  const line = (column, width) => ({
    x: known.map((row) => row.last_step),
    y: heights(column),
    mode: "lines",
    line: { width, shape: "hv", color: colour("--accent") },
    hoverinfo: "skip",
  });
  const traces = [
    line("scale_high", 1),
    { ...line("scale_low", 0), fill: "tonexty", fillcolor: colour("--band") },
    { ...line("scale", 2), ...hover(known, (row) => `loss scale ${number(row.scale)}${skipWords(row)}`) },
    ...SKIPS.map((skip) => skipMarks(known.filter((row) => row[skip.name]), skip, colour)),
  ];
  const low = Math.log2(Math.min(...heights("scale_low")));
  const high = Math.log2(Math.max(...heights("scale_high")));
  return { traces, axis: powerAxis(low, high), ...(low <= 0 ? lineAtOne(colour("--critical")) : {}) };
}

/** Where a scale stands on the log axis. */
function height(scale) {
  return Math.min(Math.max(value(scale), 2 ** ZERO_EXPONENT), 2 ** INFINITE_EXPONENT);
}

function skipMarks(rows, skip, colour) {
  return marks(rows, rows.map((row) => height(row.scale_low)), skip.symbol, colour(skip.colour));
}

function marks(rows, y, symbol, color) {
  const size = rows.length > MANY_MARKS ? 5 : 8;
  const line = { width: symbol.endsWith("open") ? 2 : 0, color };
  const x = rows.map((row) => row.last_step);
  return { x, y, mode: "markers", marker: { symbol, size, color, line }, hoverinfo: "skip", cliponaxis: false };
}

/** A log axis whose ticks are powers of two. */
function powerAxis(low, high) {
  const bottom = Math.floor(low) - 1;
  const top = Math.ceil(high) + 1;
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((top - bottom) / TICKS)));
  const ticks = [];
  for (let e = Math.ceil(bottom / step) * step; e <= top; e += step) ticks.push(e);
  return {
    type: "log",
    range: [bottom * Math.log10(2), top * Math.log10(2)],
    tickvals: ticks.map((e) => 2 ** e),
    ticktext: ticks.map(powerOfTwo),
  };
}

function lineAtOne(color) {
  const shape = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { color, width: 1, dash: "dash" } };
  const text = "1: the loss is being shrunk below this";
  const label = { text, xref: "paper", x: 0, xanchor: "left", y: 0, yanchor: "bottom", showarrow: false };
  return { shapes: [shape], annotations: [{ ...label, font: { color, size: 11 } }] };
}

function skips(rows, colour) {
  const bins = binned(rows);
  const total = (bin) => SKIPS.reduce((sum, skip) => sum + bin[skip.name], 0);
  const traces = SKIPS.map((skip) => {
    const hit = bins.filter((bin) => bin[skip.name]);
    return {
      type: "bar",
      x: hit.map((bin) => bin.first),
      y: hit.map((bin) => bin[skip.name] / bin.steps),
      width: hit.map((bin) => bin.width),
      offset: 0,
      marker: { color: colour(skip.colour), line: { width: 0 } },
      ...hover(hit, (bin) => `${number(bin[skip.name])} of ${number(bin.steps)} skipped: ${skip.name}`),
      textposition: "none",
    };
  });
  const most = Math.max(0.01, ...bins.map((bin) => total(bin) / bin.steps));
  return { traces, axis: { tickformat: ".2~%", range: [0, most * 1.08] } };
}

/** Few enough bars to be seen; a row stays whole. */
function binned(rows) {
  const steps = rows.length ? rows.at(-1).last_step + 1 - rows[0].first : 1;
  const width = Math.max(1, Math.ceil(steps / SKIP_BINS));
  const bins = new Map();
  for (const row of rows) {
    const first = Math.floor(row.first / width) * width;
    const bin = bins.get(first) ?? { first, width, steps: 0 };
    bin.steps += row.steps;
    bin.last_step = row.last_step;
    for (const { name } of SKIPS) bin[name] = (bin[name] ?? 0) + row[name];
    bins.set(first, bin);
  }
  return [...bins.values()];
}

function loss(rows, colour) {
  const known = rows.filter((row) => row.loss !== null);
  const y = known.map((row) => (Number.isFinite(value(row.loss)) ? value(row.loss) : null));
  const broken = known.filter((row) => row.nonfinite_losses);
  const lowest = Math.min(...y.filter((v) => v !== null));
  const floor = Number.isFinite(lowest) ? lowest : 0;
  const traces = [
    { ...curve(known, y, colour("--accent")), ...hover(known, (row) => `loss ${number(row.loss)}`) },
    {
      ...marks(broken, broken.map(() => floor), "x", colour("--critical")),
      ...hover(broken, (row) => `NaN or infinite in ${number(row.nonfinite_losses)}`),
    },
  ];
  return { traces, axis: {} };
}

function time(rows, colour) {
  const known = rows.filter((row) => row.seconds !== null);
  const [factor, unit] = known.every((row) => row.longest < 1) ? [1000, "ms"] : [1, "s"];
  const words = (seconds) => `${number(seconds * factor)} ${unit}`;
  const longest = curve(known, known.map((row) => row.longest * factor), colour("--muted"));
  const mean = curve(known, known.map((row) => row.seconds * factor), colour("--accent"));
  const traces = [
    { ...longest, line: { ...longest.line, width: 1, dash: "dot" }, hoverinfo: "skip" },
    { ...mean, ...hover(known, (row) => `mean ${words(row.seconds)}, longest ${words(row.longest)}`) },
  ];
  return { traces, axis: { ticksuffix: ` ${unit}`, rangemode: "tozero" } };
}

function curve(rows, y, color) {
  return { x: rows.map((row) => row.last_step), y, mode: "lines", line: { width: 1.5, color } };
}

/** What the pointer is told, in words: which steps, and what of them. */
function hover(rows, words) {
  const text = rows.map((row) => `${covered(row)}<br>${words(row)}`);
  return { text, hoverinfo: "text", hovertemplate: "%{text}<extra></extra>" };
}

function covered(row) {
  if (row.first === row.last_step) return `step ${number(row.first)}`;
  return `steps ${number(row.first)} to ${number(row.last_step)}`;
}

function skipWords(row) {
  const parts = SKIPS.filter((skip) => row[skip.name]).map((skip) => `${number(row[skip.name])} ${skip.name}`);
  return parts.length ? `<br>skipped: ${parts.join(", ")}` : "";
}

function remark(text) {
  return { text, xref: "paper", yref: "paper", x: 0.5, y: 0.5, showarrow: false, font: { size: 14 } };
}
