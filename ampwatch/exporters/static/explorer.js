// The what-if panel: another format, another loss scale, and what would become of the values.

import { byId, make, rebuild, setText } from "/static/dom.js";
import { CONFIG, frame, palette, plotlyLoaded } from "/static/plot.js";
import { spectrum } from "/static/spectrum.js";
import { FATES, cast, fates, fit, scaleWindow, sum } from "/static/whatif.js";
import { bits, number, percent, powerOfTwo } from "/static/words.js";

const HEIGHT = 230;
const USUAL_SCALES = [-4, 28]; // exponents that the dial always reaches
const FARTHEST = 120; // and those it never passes
const ROOM = 4; // exponents beyond what is marked on the dial
const FATE_WORDS = { flushed: "flushed to zero", subnormal: "subnormal", normal: "normal", overflows: "overflow" };

export class Explorer {
  constructor() {
    this.subject = null;
    this.format = null; // null: that of autocast
    this.exponent = null; // null: the scale as it is now
    this.dialling = false;
    this.ready = false;
    plotlyLoaded.then((found) => {
      this.ready = found;
      this.draw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    const dial = byId("whatif-scale");
    dial.addEventListener("input", () => {
      this.exponent = Number(dial.value);
      this.draw();
    });
    dial.addEventListener("pointerdown", () => { this.dialling = true; });
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => { this.dialling = false; });
    byId("whatif-now").addEventListener("click", () => {
      this.reset();
      this.draw();
      dial.focus();
    });
    byId("whatif-formats").addEventListener("change", (event) => {
      this.format = event.target.value;
      this.draw();
    });
  }

  /**
   * Show what could become of the values of `subject`: { cells, name, told, histogram (unscaled),
   * formats (by name), format (of autocast), lossScale, tolerated }; `cells` is another object when there is news.
   */
  show(subject) {
    const old = this.subject;
    if (["cells", "told", "format", "lossScale"].every((part) => old?.[part] === subject[part])) return;
    this.subject = subject;
    this.draw();
  }

  /** Go back to the scale as it is. */
  reset() {
    this.exponent = null;
  }

  draw() {
    if (!this.subject) return;
    const { histogram, formats, lossScale, tolerated } = this.subject;
    const name = this.format in formats ? this.format : this.subject.format;
    const format = formats[name];
    const now = Math.round(Math.log2(lossScale));
    const exponent = this.exponent ?? now;
    const window_ = scaleWindow(histogram, format, tolerated);
    setText(byId("whatif-of"), `${this.subject.name}, ${this.subject.told}`);
    this.drawFormats(name);
    this.drawDial(exponent, now, window_, histogram.flushed ? "keep what is left" : "keep both ends");
    byId("whatif-cut").hidden = !histogram.flushed;
    setText(byId("whatif-cut"), cutWords(histogram));
    setText(byId("whatif-outcome"), outcomeWords(histogram, name, format, exponent));
    setText(byId("whatif-notes"), notes(histogram, name, window_, tolerated));
    for (const id of ["whatif-fates", "chart-whatif"]) byId(id).hidden = !histogram.amax || (id === "chart-whatif" && !this.ready);
    drawFates(histogram, format, exponent);
    this.plot(histogram, format, exponent, now);
  }

  drawFormats(chosen) {
    const { histogram, formats, tolerated } = this.subject;
    const choices = Object.entries(formats).map(([name, format]) => [
      name,
      histogram.amax ? fit(histogram, format, tolerated) : "nothing",
      windowWords(scaleWindow(histogram, format, tolerated)),
    ]);
    const box = byId("whatif-formats");
    box.dataset.cut = String(histogram.flushed > 0);
    rebuild(box, [chosen, choices], () => [make("legend", { class: "unseen" }, "Format"), ...choices.map(([name, fits, span]) => {
      const input = make("input", { type: "radio", name: "format", value: name, "data-key": name });
      input.checked = name === chosen;
      const words = { fits: "✓ fits as it is", fits_scaled: `◐ fits with ${span}`, too_wide: "✖ too narrow", nothing: "– only zeros to fit" }[fits];
      return make("label", { "data-fit": fits }, input, make("span", { class: "name" }, name), make("span", { class: "fit" }, words));
    })]);
  }

  drawDial(exponent, now, { low, high }, promise) {
    const dial = byId("whatif-scale");
    if (!this.dialling) {
      const marked = [now, exponent, low ?? now, high ?? now].map((e) => Math.max(-FARTHEST, Math.min(FARTHEST, e)));
      dial.min = String(Math.min(USUAL_SCALES[0], ...marked.map((e) => e - ROOM)));
      dial.max = String(Math.max(USUAL_SCALES[1], ...marked.map((e) => e + ROOM)));
    }
    dial.value = String(exponent);
    dial.setAttribute("aria-valuetext", `2 to the power of ${exponent}`);
    setText(byId("whatif-value"), `${powerOfTwo(exponent)} = ${number(2 ** exponent)}`);
    const back = byId("whatif-now");
    setText(back, `back to ${powerOfTwo(now)}, as it is now`);
    back.style.visibility = exponent === now ? "hidden" : "visible";
    const usable = low !== null && high !== null && low <= high;
    place(byId("whatif-window"), dial, usable ? Math.max(low, Number(dial.min)) : null, Math.min(high, Number(dial.max)));
    setText(byId("whatif-window").firstElementChild, usable ? `${powerOfTwo(low)} to ${powerOfTwo(high)} ${promise}` : "");
    place(byId("whatif-mark"), dial, now, now);
    setText(byId("whatif-mark").firstElementChild, `now ${powerOfTwo(now)}`);
  }

  plot(histogram, format, exponent, now) {
    if (byId("chart-whatif").hidden) return;
    const colour = palette();
    const { traces, layout } = spectrum(histogram, format, exponent, now, colour, byId("chart-whatif").clientWidth);
    const base = frame(colour, HEIGHT);
    window.Plotly.react("chart-whatif", traces, {
      ...base, dragmode: false, hovermode: "closest", ...layout,
      xaxis: { ...base.xaxis, ...layout.xaxis }, yaxis: { ...base.yaxis, ...layout.yaxis },
    }, CONFIG);
  }
}

/** Put a mark from one exponent to another on the dial; null hides it. */
function place(mark, dial, from, to) {
  mark.hidden = from === null;
  if (from === null) return;
  const [min, max] = [Number(dial.min), Number(dial.max)];
  mark.style.setProperty("--from", String((from - min) / (max - min)));
  mark.style.setProperty("--to", String((to - min) / (max - min)));
}

function windowWords({ low, high }) {
  if (low === null || high === null) return "any scale";
  return low === high ? powerOfTwo(low) : `${powerOfTwo(low)} to ${powerOfTwo(high)}`;
}

/** What was lost before it was measured cannot be counted, only warned of. */
function cutWords({ flushed, zeros, counts }) {
  if (!flushed) return "";
  const share = percent(flushed / (zeros + sum(counts)));
  return `▲ About ${share} of the elements were zero before they were measured, flushed by the format. All this is about those that are left: raise the scale in the training, and look again.`;
}

function outcomeWords(histogram, name, format, exponent) {
  const { overflowLow, overflowHigh, underflow, nonzero, headroom } = cast(histogram, format, exponent);
  if (!nonzero) return "There are no non-zero elements: no scale would change anything.";
  const low = underflow ? `${percent(underflow / nonzero)} of the non-zero elements would be flushed to zero` : "nothing would be flushed to zero";
  const range = overflowLow === overflowHigh ? percent(overflowHigh / nonzero) : `${percent(overflowLow / nonzero)} to ${percent(overflowHigh / nonzero)}`;
  const high = overflowHigh ? `${range} would overflow` : "nothing overflows";
  const room = overflowHigh ? "" : ` (headroom ${bits(Math.log2(headroom))})`;
  return `In ${name} at scale ${powerOfTwo(exponent)}, ${low}, and ${high}${room}.`;
}

function notes(histogram, name, { low, high }, tolerated) {
  const told = [];
  if (low !== null && high !== null) {
    told.push(low <= high
      ? `${windowWords({ low, high })} flush at most ${percent(tolerated)} to zero and overflow nothing.`
      : `No scale keeps both ends: at ${powerOfTwo(high)} and below the largest fit, at ${powerOfTwo(low)} and above the smallest; ${name} is too narrow for these values.`);
  }
  const elements = histogram.zeros + sum(histogram.counts);
  if (histogram.zeros) told.push(`${percent(histogram.zeros / elements)} of all elements are zero already and not in the picture.`);
  if (histogram.nans + histogram.infs) told.push(`${number(histogram.nans)} NaN and ${number(histogram.infs)} infinite elements are left out.`);
  return told.join(" ");
}

function drawFates(histogram, format, exponent) {
  const all = sum(histogram.counts);
  const shares = Object.fromEntries(FATES.map((fate) => [fate, 0]));
  fates(histogram, format, exponent).forEach((fate, i) => { shares[fate] += histogram.counts[i] / all; });
  rebuild(byId("whatif-fates"), shares, () => FATES.map((fate) => make("li", { "data-fate": fate, "data-none": String(!shares[fate]) },
    make("span", { class: "swatch", "aria-hidden": "true" }), `${FATE_WORDS[fate]} `, make("b", {}, percent(shares[fate])))));
}
