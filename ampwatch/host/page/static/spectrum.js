// The chart of the what-if panel: exponents after scaling, against the limits of a format.

import { powers } from "/static/axes.js";
import { FATES, fates, log2, sum, topBin } from "/static/whatif.js";
import { number, percent, powerOfTwo } from "/static/words.js";

const RAREST = 1e-7; // share of the elements at the foot of the chart
const BELOW = 14; // exponents shown below the point where values are flushed to zero
const ABOVE = 5; // and above the largest
const TICK = 60; // px
const LETTER = 7; // px
const BAR = 0.43; // half its width, of an exponent

const FATE_COLOURS = { flushed: "--critical", subnormal: "--subnormal", normal: "--accent", overflows: "--critical" };

/**
 * The picture.
 * @param {object} histogram of the unscaled values
 * @param {object} format to cast to
 * @param {number} shift exponent of the loss scale that is tried
 * @param {number} now exponent of the loss scale in use: at that, all bars are in the picture
 * @param {string} whole what shares are of, in words
 * @param {number} width of the chart in px
 */
export function spectrum(histogram, format, shift, now, whole, width) {
  const flush = log2(format.min_subnormal) - 1;
  const limits = [flush, log2(format.min_normal), topBin(format)];
  const last = histogram.first + histogram.counts.length - 1;
  const left = Math.min(flush - BELOW, histogram.counts.length ? histogram.first + now - 2 : Infinity);
  const right = Math.max(topBin(format) + ABOVE, histogram.counts.length ? last + now + 1 : -Infinity);
  const bars = gather(histogram, fates(histogram, format, shift), shift, left + 1, right);
  const [foot, head] = [Math.log10(RAREST), 0.15];
  return {
    margin: { l: 72, r: 12, t: 22, b: 44 },
    x: { range: [left, right], ticks: powers([left, right], Math.min(12, width / TICK)), title: "magnitude after scaling" },
    y: { range: [foot, head], ticks: [[-6, "0.0001 %"], [-4, "0.01 %"], [-2, "1 %"], [0, "100 %"]] },
    layers: [
      ...grounds(limits, left, right).map(([from, to, colour]) => ({ kind: "bars", colour, opacity: 0.07, bars: [[from, to, foot, head]] })),
      ...limits.map((x) => ({ kind: "rule", x, colour: "--muted", width: 1 })),
      ...FATES.map((fate) => ({
        kind: "bars", colour: FATE_COLOURS[fate],
        bars: bars.filter((bar) => bar.fate === fate).map(({ exponent, share }) => [exponent - 0.5 - BAR, exponent - 0.5 + BAR, foot, Math.max(foot, Math.log10(share))]),
      })),
      ...names(limits, left, right, width),
    ],
    stops: bars.map((bar) => ({
      x: bar.exponent - 0.5,
      say: () => [barWords(bar, left + 1, right), `${number(bar.count)} elements, ${percent(bar.share)} of ${whole}`],
    })),
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

function grounds([flush, normal, top], left, right) {
  return [[left, flush, "--critical"], [flush, normal, "--subnormal"], [top, right, "--critical"]];
}

/** The name of each region above it, where it is wide enough. */
function names([flush, normal, top], left, right, width) {
  const regions = [["flushed to zero", left, flush], ["subnormal", flush, normal], ["normal", normal, top], ["overflow", top, right]];
  return regions.filter(([words, from, to]) => ((to - from) / (right - left)) * width > words.length * LETTER)
    .map(([words, from, to]) => ({ kind: "text", words, x: (from + to) / 2, top: 0, dy: -7, anchor: "middle" }));
}
