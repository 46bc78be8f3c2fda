// The what-if panel: another format, another loss scale, and what would become of the values.

import { cutAbove, knownWindow } from "/static/caution.js";
import { byId, make, rebuild, setText } from "/static/dom.js";
import { fitWords, notes, outcomeWords, warning, whole } from "/static/outcome.js";
import { Plot, onNewLook } from "/static/plot.js";
import { spectrum } from "/static/spectrum.js";
import { FATES, fates, sum } from "/static/whatif.js";
import { number, percent, powerOfTwo } from "/static/words.js";

const USUAL_SCALES = [-4, 28]; // exponents that the dial always reaches
const FARTHEST = 120; // and those it never passes
const [MIN_DIGITS, MAX_DIGITS] = [-3, 23]; // exponents of scales that are read as digits, too
const ROOM = 4; // exponents beyond what is marked on the dial
const FATE_WORDS = { flushed: "flushed to zero", subnormal: "subnormal", normal: "normal", overflows: "overflow" };

export class Explorer {
  constructor() {
    this.subject = null;
    this.format = null; // null: that of autocast
    this.exponent = null; // null: the scale as it is now
    this.dialling = false;
    this.blocked = [];
    this.plot = new Plot(byId("chart-whatif"), "Elements by magnitude after scaling");
    onNewLook(() => this.draw());
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
   * Show what could become of the values of `subject`: { cells, name, told, histogram, formats,
   * format, measuredAt, tolerated } as in caution.js, and lossScale, null without one, of which `noScale` tells; `cells`
   * is another object when there is news.
   */
  show(subject) {
    const old = this.subject;
    if (["cells", "told", "format", "measuredAt", "lossScale", "noScale"].every((part) => old?.[part] === subject[part])) return;
    this.subject = subject;
    this.draw();
  }

  /** Go back to the scale as it is. */
  reset() {
    this.exponent = null;
  }

  draw() {
    if (!this.subject) return;
    const { histogram, formats, lossScale } = this.subject;
    const name = this.format in formats ? this.format : this.subject.format;
    const now = lossScale === null ? 0 : Math.round(Math.log2(lossScale));
    const exponent = this.exponent ?? now;
    setText(byId("whatif-of"), `${this.subject.name}, ${this.subject.told}`);
    this.drawFormats(name);
    this.drawDial(formats[name], exponent, now);
    setText(byId("whatif-cut"), warning(this.subject));
    byId("whatif-cut").hidden = !warning(this.subject);
    setText(byId("whatif-outcome"), outcomeWords(this.subject, name, exponent));
    setText(byId("whatif-notes"), notes(this.subject, name));
    for (const id of ["whatif-fates", "chart-whatif"]) byId(id).hidden = !histogram.amax;
    drawFates(this.subject, formats[name], exponent);
    if (!histogram.amax) return;
    this.plot.draw(spectrum(histogram, formats[name], exponent, now, whole(this.subject), byId("chart-whatif").clientWidth));
  }

  /** Show losses in block-scaled formats: { name, group, words } each. No loss scale changes these. */
  showBlocks(formats) {
    this.blocked = formats;
    if (this.subject) this.draw();
  }

  drawFormats(chosen) {
    const choices = Object.entries(this.subject.formats).map(([name, format]) => ({ name, group: format.group, ...fitWords(this.subject, format) }));
    const cards = (formats) => [...new Set(formats.map(({ group }) => group))].flatMap((group) => [make("h3", {}, group), ...formats.filter((one) => one.group === group).map((one) => formatCard(one, chosen))]);
    rebuild(byId("whatif-formats"), [chosen, choices], () => [make("legend", { class: "unseen" }, "Format"), ...cards(choices)]);
    // Apart from what can be chosen: news of blocks must not take a choice from under the pointer.
    rebuild(byId("whatif-blocked"), this.blocked, () => cards(this.blocked));
    byId("whatif-blocked").hidden = !this.blocked.length;
    byId("whatif-blocks").hidden = !this.blocked.length;
  }

  drawDial(format, exponent, now) {
    const dial = byId("whatif-scale");
    const window_ = knownWindow(this.subject, format);
    if (!this.dialling) {
      const marked = [now, exponent, window_.low ?? now, window_.high ?? now].map((e) => Math.max(-FARTHEST, Math.min(FARTHEST, e)));
      dial.min = String(Math.min(USUAL_SCALES[0], ...marked.map((e) => e - ROOM)));
      dial.max = String(Math.max(USUAL_SCALES[1], ...marked.map((e) => e + ROOM)));
    }
    const none = this.subject.lossScale === null;
    dial.value = String(exponent);
    dial.setAttribute("aria-valuetext", `2 to the power of ${exponent}`);
    setText(byId("whatif-value"), none && exponent === 0 ? this.subject.noScale : scaleWords(exponent));
    const back = byId("whatif-now");
    setText(back, none ? `back to ${this.subject.noScale}` : `back to ${powerOfTwo(now)}, as it is now`);
    back.style.visibility = exponent === now ? "hidden" : "visible";
    this.drawWindow(dial, window_);
    place(byId("whatif-mark"), dial, none ? null : now, now);
    setText(byId("whatif-mark").firstElementChild, none ? "" : `now ${powerOfTwo(now)}`);
  }

  /** Show the usable scales, or where they end if it is not known where they begin. */
  drawWindow(dial, { low, high }) {
    const mark = byId("whatif-window");
    const open = low === null;
    const shown = high !== null && !cutAbove(this.subject) && (open || low <= high);
    place(mark, dial, shown ? Math.max(low ?? high, Number(dial.min)) : null, Math.min(high, Number(dial.max)));
    mark.dataset.open = String(open);
    const words = open ? `overflow above ${powerOfTwo(high ?? 0)}` : `${powerOfTwo(low)} to ${powerOfTwo(high ?? 0)} keep both ends`;
    setText(mark.firstElementChild, shown ? words : "");
  }
}

/** A format that can be chosen, or one whose blocks have a scale of their own: the dial is not for it. */
function formatCard({ name, fits, words }, chosen) {
  const said = [make("span", { class: "name" }, name), make("span", { class: "fit" }, words)];
  if (fits === undefined) return make("p", { class: "block" }, ...said);
  const input = make("input", { type: "radio", name: "format", value: name, "data-key": name });
  input.checked = name === chosen;
  return make("label", { "data-fit": fits }, input, ...said);
}

/** Put a mark from one exponent to another on the dial; null hides it. */
function place(mark, dial, from, to) {
  mark.hidden = from === null;
  if (from === null) return;
  const [min, max] = [Number(dial.min), Number(dial.max)];
  mark.style.setProperty("--from", String((from - min) / (max - min)));
  mark.style.setProperty("--to", String((to - min) / (max - min)));
}

function drawFates(subject, format, exponent) {
  const { histogram } = subject;
  const all = sum(histogram.counts);
  const counts = Object.fromEntries(FATES.map((fate) => [fate, 0]));
  fates(histogram, format, exponent).forEach((fate, i) => { counts[fate] += histogram.counts[i]; });
  rebuild(byId("whatif-fates"), [whole(subject), counts], () => [
    make("li", { class: "quiet" }, `Of ${whole(subject)}:`),
    ...FATES.map((fate) => make("li", { "data-fate": fate, "data-none": String(!counts[fate]) },
      make("span", { class: "swatch", "aria-hidden": "true" }), `${FATE_WORDS[fate]} `, make("b", {}, percent(counts[fate] / all)))),
  ]);
}

/** A scale as the axes write it, and in digits where those can be read. */
function scaleWords(exponent) {
  const power = powerOfTwo(exponent);
  return exponent < MIN_DIGITS || exponent > MAX_DIGITS ? power : `${power} = ${number(2 ** exponent)}`;
}
