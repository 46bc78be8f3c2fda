// The heatmap of exponents over steps: from columns to a picture. No state, no page.

import { powers } from "./axes.js";
import { WIDE, inWords, lookOf, names, roomFor } from "./limits.js";
import { number, percent, powerOfTwo, steps } from "./words.js";

const FAINTEST = -6; // decades of share; what is rarer is drawn as faint as this
const REACH = 24; // a limit that is so many exponents away from the data is not in the picture
const TICKS = 9;
const BLUES = ["--heat-faint", "--heat-middle", "--heat-strong"];
const REDS = ["--heat-alarm", "--critical"];

/** The limits of a format, from the largest: where they are, and the scale that decides of several. */
const LIMITS = [
  { name: "overflow", at: (format) => Math.log2(format.overflow_from), scale: "scale_high" },
  { name: "smallest normal", at: (format) => Math.log2(format.min_normal), scale: "scale_low" },
  { name: "flush to zero", at: (format) => Math.log2(format.min_subnormal) - 1, scale: "scale_low" },
];

/**
 * @param {{columns: object[], name: string, format: object, known: boolean, scaled: boolean}} view columns as
 *   byStep makes them, the format whose limits are drawn, its name, whether it is known to be in use, and
 *   whether values are shown times the scale
 * @param {number} end the step that is next in the run: limits are drawn up to there
 * @param {number} width of the chart in px
 */
export function exponents({ columns, name, format, known, scaled }, end, width) {
  const cells = lasting(columns, end);
  const edges = [...cells.map((cell) => cell.from), cells.at(-1).until];
  const [low, high] = reach(cells, scaled);
  const lines = limits(cells, end, format, scaled, low, high);
  const heights = lines.flatMap((line) => line.heights);
  const bottom = Math.min(low, ...heights) - 1;
  const top = Math.max(high, ...heights) + 1;
  const strip = (top - bottom) / 16;
  const strips = [
    { name: "zero", count: (cell) => cell.zeros, from: bottom - 1.4 * strip, ramp: BLUES },
    { name: "inf", count: (cell) => cell.infs, from: top + 0.4 * strip, ramp: REDS },
    { name: "NaN", count: (cell) => cell.nans, from: top + 1.4 * strip, ramp: REDS },
  ].map((row) => ({ ...row, to: row.from + strip }));
  const bins = Array.from({ length: high - low }, (_, i) => low + 1 + i);
  const rows = [
    ...bins.map((bin) => ({ from: bin - 1, to: bin, ramp: BLUES, count: (cell) => cell.counts[bin - cell.lowest - shift(cell, scaled)] ?? 0 })),
    ...strips,
  ].map((row) => ({ ...row, shades: cells.map((cell) => shade(row.count(cell) / cell.total)) }));
  const isWide = width > WIDE;
  const range = [strips[0].from, strips.at(-1).to];
  return {
    caption: lines.length ? `lines: where ${name} ${known ? "ends" : "would end"}${inWords(lines, isWide)}` : "",
    away: lines.length ? "" : awayWords(name, format),
    picture: {
      margin: { r: roomFor(lines, isWide), t: 6 },
      y: { range, ticks: [...powers([bottom, top], TICKS), ...strips.map((row) => [row.from + strip / 2, row.name, true])] },
      rungs: 1,
      layers: [
        ...strips.map((row) => ({ kind: "bars", colour: "--grid", opacity: 0.45, bars: [[edges[0], Math.max(end, edges.at(-1)), row.from, row.to]] })),
        { kind: "heat", edges, rows },
        ...lines.flatMap((line) => line.layers),
        ...names(lines, isWide),
      ],
      stops: cells.map((cell) => ({ x: (cell.from + cell.until) / 2, say: (height) => cellWords(cell, height, rows, strips, scaled) })),
    },
  };
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

/** How strong a share is drawn, from 0 to 1; null for none. */
function shade(share) {
  return share ? 1 - Math.max(FAINTEST, Math.log10(share)) / FAINTEST : null;
}

/** What is read of a cell at a height: its bin there, or else all that is not finite or zero. */
function cellWords(cell, height, rows, strips, scaled) {
  const shown = rows.filter((row) => (row.name ? height === null || (height >= row.from && height < row.to) : height > row.from && height <= row.to));
  const told = shown.map((row) => [row, row.count(cell) / cell.total]).filter(([row, share]) => share || (height !== null && !row.name));
  const words = told.flatMap(([row, share]) => (row.name ? [`${row.name}: ${percent(share)} of the elements`] : [
    `${powerOfTwo(row.from)} to ${powerOfTwo(row.to)}${scaled ? " after scaling" : ""}: ${percent(share)} of the elements`,
  ]));
  return [steps([cell.first, cell.last_step]), ...words, `the largest before scaling is ${number(cell.amax)}`, scaleWords(cell)];
}

function scaleWords({ scale_low: low, scale_high: high }) {
  return low === high ? `loss scale ${number(low)}` : `loss scale ${number(low)} to ${number(high)}`;
}

/** The lines of those limits that are near the data; of several scales the one that loses more. */
function limits(cells, end, format, scaled, low, high) {
  return LIMITS.flatMap((limit) => {
    const heights = cells.map((cell) => limit.at(format) - (scaled ? 0 : Math.log2(cell[limit.scale])));
    if (Math.min(...heights) > high + REACH || Math.max(...heights) < low - REACH) return [];
    const points = cells.map((cell, i) => [cell.from, heights[i]]);
    points.push([Math.max(end, cells.at(-1).until), heights.at(-1)]);
    const line = { kind: "line", stairs: true, points, ...lookOf(limit.name) };
    return [{ layers: [{ ...line, colour: "--raised", width: 4, dash: "" }, line], heights, name: limit.name, words: words(limit, format, scaled), y: heights.at(-1) }];
  });
}

function awayWords(name, format) {
  const [overflow, , flush] = LIMITS.map((limit) => powerOfTwo(Math.round(limit.at(format))));
  return `No limit of ${name} is near: overflow begins at ${overflow}, and what is flushed to zero ends at ${flush}.`;
}

function words(limit, format, scaled) {
  if (!scaled) return limit.name;
  return limit.name === "overflow" ? `overflow ${number(format.max)}` : `${limit.name} ${powerOfTwo(limit.at(format))}`;
}
