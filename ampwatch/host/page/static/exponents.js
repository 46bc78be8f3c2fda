// The heatmap of exponents over steps: from columns to Plotly's traces and axes. No state, no page.

import { named } from "/static/state.js";
import { number, percent, powerOfTwo } from "/static/words.js";

const FAINTEST = -6; // decades of share; what is rarer is drawn as faint as this
const REACH = 24; // a limit that is so many exponents away from the data is not in the picture
const WIDE = 620; // px; a narrower chart has its labels inside
const TICKS = 9;
const HOVER = { hoverinfo: "text", hovertemplate: "%{text}<extra></extra>" };

/** The limits of a format, from the largest: words, where they are, and how they are drawn. */
const LIMITS = [
  { words: "overflow", at: (format) => Math.log2(format.overflow_from), colour: "--critical", dash: "solid", scale: "scale_high" },
  { words: "smallest normal", at: (format) => Math.log2(format.min_normal), colour: "--warning", dash: "dot", scale: "scale_low" },
  { words: "flush to zero", at: (format) => Math.log2(format.min_subnormal) - 1, colour: "--critical", dash: "dash", scale: "scale_low" },
];

/**
 * @param {{columns: object[], name: string, format: object, known: boolean, scaled: boolean}} view columns as
 *   readColumns makes them, the format whose limits are drawn, its name, whether it is known to be in use, and
 *   whether values are shown times the scale
 * @param {number} end the step that is next in the run: limits are drawn up to there
 * @param {(name: string) => string} colour the palette
 * @param {number} width of the chart in px
 */
export function exponents({ columns, name, format, known, scaled }, end, colour, width) {
  const cells = lasting(columns, end);
  const edges = [...cells.map((cell) => cell.from), cells.at(-1).until];
  const [low, high] = reach(cells, scaled);
  const lines = limits(cells, end, format, scaled, low, high, colour);
  const heights = lines.flatMap((line) => line.y);
  const bottom = Math.min(low, ...heights) - 1;
  const top = Math.max(high, ...heights) + 1;
  const strip = (top - bottom) / 16;
  const strips = [
    { name: "zero", count: (cell) => cell.zeros, from: bottom - 1.4 * strip, scale: blues(colour) },
    { name: "inf", count: (cell) => cell.infs, from: top + 0.4 * strip, scale: reds(colour) },
    { name: "NaN", count: (cell) => cell.nans, from: top + 1.4 * strip, scale: reds(colour) },
  ];
  const wide = width > WIDE && lines.length > 0;
  return {
    caption: lines.length ? `lines: where ${name} ${known ? "ends" : "would end"}` : "",
    away: lines.length ? "" : awayWords(name, format),
    traces: [
      bins(cells, edges, low, high, scaled, colour),
      ...strips.map((row) => stripTrace(cells, edges, row, strip)),
      ...lines.flatMap((line) => line.traces),
    ],
    axis: axis(bottom, top, strips, strip),
    shapes: strips.map((row) => stripGround(row, strip, colour)),
    annotations: lines.map((line) => label(line, wide, colour)),
    margin: { r: wide ? 168 : 12, t: 6 },
  };
}

/** Columns of the heatmap, in the order of their steps; `names` says what their cells are. */
export function readColumns(names, raw) {
  return Object.entries(raw)
    .map(([first, cells]) => ({ first: Number(first), ...named(names, cells) }))
    .sort((a, b) => a.first - b.first);
}

/** A sample holds until the next one, the newest as long as the one before it, but not beyond the run. */
function lasting(columns, end) {
  return columns.map((column, i) => {
    const usual = i ? column.first - columns[i - 1].last_step : Infinity;
    const until = columns[i + 1]?.first ?? Math.max(column.last_step + 1, Math.min(column.last_step + usual, end));
    return { ...column, from: column.first, until, total: total(column) };
  });
}

function total({ counts, zeros, nans, infs }) {
  return Math.max(1, counts.reduce((sum, count) => sum + count, zeros + nans + infs));
}

/** How far the values of a cell are moved: not at all, or by its loss scale. */
function shift(cell, scaled) {
  return scaled ? Math.round(Math.log2(cell.scale_high)) : 0;
}

function reach(cells, scaled) {
  const filled = cells.filter((cell) => cell.counts.length);
  const low = Math.min(...filled.map((cell) => cell.lowest + shift(cell, scaled)));
  const high = Math.max(...filled.map((cell) => cell.lowest + cell.counts.length - 1 + shift(cell, scaled)));
  return filled.length ? [low - 1, high] : [-1, 0];
}

/** Bin e is drawn from e - 1 to e. */
function bins(cells, edges, low, high, scaled, colour) {
  const exponentsShown = Array.from({ length: high - low }, (_, i) => low + 1 + i);
  const count = (cell, exponent) => cell.counts[exponent - cell.lowest - shift(cell, scaled)] || 0;
  return {
    ...heat(cells, exponentsShown.map((exponent) => (cell) => count(cell, exponent)), blues(colour), (i, cell, share) => [
      `${powerOfTwo(exponentsShown[i] - 1)} to ${powerOfTwo(exponentsShown[i])}${scaled ? " after scaling" : ""}`,
      `${share} of the elements; the largest before scaling is ${number(cell.amax)}`,
    ]),
    x: edges,
    y: [low, ...exponentsShown],
  };
}

function stripTrace(cells, edges, row, height) {
  return {
    ...heat(cells, [row.count], row.scale, (_, cell, share) => [`${row.name}: ${share} of the elements`]),
    x: edges,
    y: [row.from, row.from + height],
  };
}

/** A heatmap of shares; `rows` are functions from a cell to a count, `words` say what a cell is. */
function heat(cells, rows, colorscale, words) {
  const shade = (share) => (share ? Math.max(FAINTEST, Math.log10(share)) : null);
  const shares = rows.map((count) => cells.map((cell) => count(cell) / cell.total));
  const text = shares.map((row, i) => row.map((share, c) => (
    share ? [steps(cells[c]), ...words(i, cells[c], percent(share)), scaleWords(cells[c])].join("<br>") : "")));
  return {
    type: "heatmap", z: shares.map((row) => row.map(shade)), zmin: FAINTEST, zmax: 0,
    colorscale, showscale: false, hoverongaps: false, text, ...HOVER,
  };
}

function steps({ first, last_step: last }) {
  return first === last ? `step ${number(first)}` : `steps ${number(first)} to ${number(last)}`;
}

function scaleWords({ scale_low: low, scale_high: high }) {
  return low === high ? `loss scale ${number(low)}` : `loss scale ${number(low)} to ${number(high)}`;
}

function blues(colour) {
  return [[0, colour("--heat-faint")], [0.5, colour("--heat-middle")], [1, colour("--heat-strong")]];
}

function reds(colour) {
  return [[0, colour("--heat-alarm")], [1, colour("--critical")]];
}

/** The lines of those limits that are near the data; of several scales the one that loses more. */
function limits(cells, end, format, scaled, low, high, colour) {
  const x = [...cells.map((cell) => cell.from), Math.max(end, cells.at(-1).until)];
  return LIMITS.flatMap((limit) => {
    const at = cells.map((cell) => limit.at(format) - (scaled ? 0 : Math.log2(cell[limit.scale])));
    if (Math.min(...at) > high + REACH || Math.max(...at) < low - REACH) return [];
    const y = [...at, at.at(-1)];
    const line = { color: colour(limit.colour), width: 1.5, dash: limit.dash, shape: "hv" };
    const halo = { ...line, color: colour("--raised"), width: 4, dash: "solid" };
    const traces = [halo, line].map((style) => ({ x, y, mode: "lines", line: style, hoverinfo: "skip" }));
    return [{ traces, y, words: words(limit, format, scaled), color: line.color }];
  });
}

function awayWords(name, format) {
  const [overflow, , flush] = LIMITS.map((limit) => powerOfTwo(Math.round(limit.at(format))));
  return `No limit of ${name} is near: overflow begins at ${overflow}, and what is flushed to zero ends at ${flush}.`;
}

function words(limit, format, scaled) {
  if (!scaled) return limit.words;
  return limit.words === "overflow" ? `overflow ${number(format.max)}` : `${limit.words} ${powerOfTwo(limit.at(format))}`;
}

function label({ y, words: text, color }, wide, colour) {
  const place = wide ? { x: 1, xanchor: "left", yanchor: "middle" } : { x: 1, xanchor: "right", yanchor: "bottom", bgcolor: colour("--raised"), opacity: 0.85 };
  return { text: wide ? ` ${text}` : text, xref: "paper", y: y.at(-1), showarrow: false, font: { color, size: 11 }, ...place };
}

function stripGround(row, height, colour) {
  return {
    type: "rect", layer: "below", xref: "paper", x0: 0, x1: 1, y0: row.from, y1: row.from + height,
    fillcolor: colour("--grid"), opacity: 0.45, line: { width: 0 },
  };
}

function axis(bottom, top, strips, strip) {
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((top - bottom) / TICKS)));
  const ticks = [];
  for (let e = Math.ceil(bottom / step) * step; e <= top; e += step) ticks.push(e);
  const lowest = strips[0].from;
  return {
    range: [lowest, strips.at(-1).from + strip],
    tickvals: [...ticks, ...strips.map((row) => row.from + strip / 2)],
    ticktext: [...ticks.map(powerOfTwo), ...strips.map((row) => row.name)],
  };
}
