// The chart of the what-if panel: exponents after scaling, against the limits of a format.

import { powers } from "./axes.js";

const RAREST = 1e-7; // share of the elements at the foot of the chart
const TICK = 60; // px
const LETTER = 7; // px
const BAR = 0.43; // half its width, of an exponent

const FATE_COLOURS = { flushed: "--critical", subnormal: "--subnormal", normal: "--accent", overflows: "--critical" };

/**
 * The picture.
 * @param {object} picture as the daemon has it: limits, range, and bars of exponent, fate, share and words
 * @param {string} whole what shares are of, in words
 * @param {number} width of the chart in px
 */
export function spectrum({ limits, range, bars }, whole, width) {
  const [left, right] = range;
  const [foot, head] = [Math.log10(RAREST), 0.15];
  return {
    margin: { l: 72, r: 12, t: 22, b: 44 },
    x: { range, ticks: powers(range, Math.min(12, width / TICK)), title: "magnitude after scaling" },
    y: { range: [foot, head], ticks: [[-6, "0.0001 %"], [-4, "0.01 %"], [-2, "1 %"], [0, "100 %"]] },
    layers: [
      ...grounds(limits, left, right).map(([from, to, colour]) => ({ kind: "bars", colour, opacity: 0.07, bars: [[from, to, foot, head]] })),
      ...limits.map((x) => ({ kind: "rule", x, colour: "--muted", width: 1 })),
      ...Object.entries(FATE_COLOURS).map(([fate, colour]) => ({
        kind: "bars", colour,
        bars: bars.filter((bar) => bar[1] === fate).map(([exponent, , share]) => [exponent - 0.5 - BAR, exponent - 0.5 + BAR, foot, Math.max(foot, Math.log10(share))]),
      })),
      ...names(limits, left, right, width),
    ],
    stops: bars.map(([exponent, , , where, count]) => ({ x: exponent - 0.5, say: () => [where, `${count} of ${whole}`] })),
  };
}

function grounds([flush, normal, top], left, right) {
  return [[left, flush, "--critical"], [flush, normal, "--subnormal"], [top, right, "--critical"]];
}

/** The name of each region above it, where it is wide enough. */
function names([flush, normal, top], left, right, width) {
  const regions = [["flushed to zero", left, flush], ["subnormal", flush, normal], ["normal", normal, top], ["overflow", top, right]];
  return regions.filter(([words, from, to]) => ((to - from) / (right - left)) * width > words.length * LETTER)
    .map(([words, from, to]) => ({ kind: "text", words, x: (from + to) / 2, top: 0, dy: -7, anchor: "middle" }));
}
