// The chart of the what-if panel: exponents after scaling, against the limits of a format.

import { FATES, fates, log2, sum, topBin } from "/static/whatif.js";
import { number, percent, powerOfTwo } from "/static/words.js";

const RAREST = 1e-7; // share of the elements at the foot of the chart
const BELOW = 14; // exponents shown below the point where values are flushed to zero
const ABOVE = 5; // and above the largest
const TICKS = 12;
const LETTER = 7; // px

const FATE_COLOURS = { flushed: "--critical", subnormal: "--subnormal", normal: "--accent", overflows: "--critical" };

/**
 * Traces and layout.
 * @param {object} histogram of the unscaled values
 * @param {object} format to cast to
 * @param {number} shift exponent of the loss scale that is tried
 * @param {number} now exponent of the loss scale in use: at that, all bars are in the picture
 * @param {string} whole what shares are of, in words
 * @param {number} width of the chart in px
 */
export function spectrum(histogram, format, shift, now, whole, colour, width) {
  const flush = log2(format.min_subnormal) - 1;
  const limits = [flush, log2(format.min_normal), topBin(format)];
  const last = histogram.first + histogram.counts.length - 1;
  const left = Math.min(flush - BELOW, histogram.counts.length ? histogram.first + now - 2 : Infinity);
  const right = Math.max(topBin(format) + ABOVE, histogram.counts.length ? last + now + 1 : -Infinity);
  const bars = gather(histogram, fates(histogram, format, shift), shift, left + 1, right);
  const traces = FATES.map((fate) => {
    const those = bars.filter((bar) => bar.fate === fate);
    return {
      type: "bar", width: 0.86, marker: { color: colour(FATE_COLOURS[fate]), line: { width: 0 } },
      x: those.map((bar) => bar.exponent - 0.5), y: those.map((bar) => bar.share), textposition: "none",
      text: those.map((bar) => `${barWords(bar, left + 1, right)}<br>${number(bar.count)} elements, ${percent(bar.share)} of ${whole}`),
      hoverinfo: "text", hovertemplate: "%{text}<extra></extra>",
    };
  });
  return {
    traces,
    layout: {
      barmode: "overlay",
      margin: { l: 72, r: 12, t: 22, b: 44 },
      shapes: [...grounds(limits, left, right, colour), ...limits.map((x) => edge(x, colour))],
      annotations: names(limits, left, right, colour, width),
      xaxis: { range: [left, right], fixedrange: true, ...powers(left, right), title: { text: "magnitude after scaling", standoff: 6 } },
      yaxis: {
        type: "log", range: [Math.log10(RAREST), 0.15],
        tickvals: [1e-6, 1e-4, 1e-2, 1], ticktext: ["0.0001 %", "0.01 %", "1 %", "100 %"],
      },
    },
  };
}

/** Bars by exponent after scaling; what is beyond the picture is counted at its edges. */
function gather(histogram, fate, shift, lowest, highest) {
  const all = sum(histogram.counts);
  const bars = new Map();
  histogram.counts.forEach((count, i) => {
    if (!count) return;
    const exponent = Math.max(lowest, Math.min(highest, histogram.first + i + shift));
    const key = `${exponent} ${fate[i]}`;
    const bar = bars.get(key) ?? { exponent, fate: fate[i], count: 0 };
    bar.count += count;
    bar.share = bar.count / all;
    bars.set(key, bar);
  });
  return [...bars.values()];
}

function barWords({ exponent }, lowest, highest) {
  if (exponent === lowest) return `${powerOfTwo(exponent)} and less`;
  if (exponent === highest) return `above ${powerOfTwo(exponent - 1)}`;
  return `${powerOfTwo(exponent - 1)} to ${powerOfTwo(exponent)}`;
}

function grounds([flush, normal, top], left, right, colour) {
  const ground = (x0, x1, name) => ({
    type: "rect", layer: "below", yref: "paper", y0: 0, y1: 1, x0, x1, fillcolor: colour(name), opacity: 0.07, line: { width: 0 },
  });
  return [ground(left, flush, "--critical"), ground(flush, normal, "--subnormal"), ground(top, right, "--critical")];
}

function edge(x, colour) {
  return { type: "line", yref: "paper", y0: 0, y1: 1, x0: x, x1: x, line: { color: colour("--muted"), width: 1 } };
}

/** The name of each region above it, where it is wide enough. */
function names([flush, normal, top], left, right, colour, width) {
  const regions = [["flushed to zero", left, flush], ["subnormal", flush, normal], ["normal", normal, top], ["overflow", top, right]];
  return regions.filter(([text, from, to]) => (to - from) / (right - left) * width > text.length * LETTER).map(([text, from, to]) => ({
    text, x: (from + to) / 2, xanchor: "center", yref: "paper", y: 1, yanchor: "bottom", showarrow: false, font: { size: 11, color: colour("--muted") },
  }));
}

function powers(left, right) {
  const step = 2 ** Math.ceil(Math.log2((right - left) / TICKS));
  const tickvals = [];
  for (let e = Math.ceil(left / step) * step; e <= right; e += step) tickvals.push(e);
  return { tickvals, ticktext: tickvals.map(powerOfTwo) };
}
