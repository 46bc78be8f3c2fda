// The what-if panel: another format, another loss scale, and what would become of the values. The daemon works it
// out (host/page/whatif_state.py); here it is asked for and drawn.

import { byId, make, rebuild, setText } from "./dom.js";
import { Plot, onNewLook } from "./plot.js";
import { spectrum } from "./spectrum.js";
import { number, powerOfTwo } from "./words.js";

const MAX_WAIT_MS = 20000; // for an answer; then the next news asks again
const ROOT = "(root)"; // how the daemon calls the module without a name in an address
const USUAL_SCALES = [-4, 28]; // exponents that the dial always reaches
const FARTHEST = 120; // and those it never passes
const [MIN_DIGITS, MAX_DIGITS] = [-3, 23]; // exponents of scales that are read as digits, too
const ROOM = 4; // exponents beyond what is marked on the dial

export class Explorer {
  constructor() {
    this.wanted = null;
    this.answer = null;
    this.format = null; // null: that of autocast
    this.exponent = null; // null: the scale as it is now
    this.dialling = false;
    this.plot = new Plot(byId("chart-whatif"), "Elements by magnitude after scaling");
    onNewLook(() => this.draw());
    const dial = byId("whatif-scale");
    dial.addEventListener("input", () => this.choose({ exponent: Number(dial.value) }));
    dial.addEventListener("pointerdown", () => { this.dialling = true; });
    for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => { this.dialling = false; });
    byId("whatif-now").addEventListener("click", () => {
      this.choose({ exponent: null });
      dial.focus();
    });
    byId("whatif-formats").addEventListener("change", (event) => this.choose({ format: event.target.value }));
  }

  /**
   * Show what could become of values: { run, rank, module, news, noScale }; null for module: all gradients. `news`
   * is another string when there is news, `noScale` tells of a training without a loss scale.
   */
  show(wanted) {
    const old = this.wanted;
    if (old && ["run", "rank", "module", "news"].every((part) => old[part] === wanted[part])) return;
    this.wanted = wanted;
    if (old && ["run", "rank"].some((part) => old[part] !== wanted[part])) this.take({});
    this.ask();
  }

  /** Go back to the scale as it is. */
  reset() {
    this.exponent = null;
  }

  choose(choice) {
    Object.assign(this, choice);
    this.drawDial();
    this.ask();
  }

  /** Ask for what is wanted now; while an answer is on its way, once more after it. */
  async ask() {
    this.isOld = true;
    if (this.asking) return;
    this.asking = true;
    while (this.isOld && this.wanted) {
      this.isOld = false;
      const wanted = this.wanted;
      const answer = await this.fetched(wanted);
      // What came in since then is asked for next; meanwhile what was dialled a moment ago is shown.
      if (answer && ["run", "rank", "module"].every((part) => this.wanted[part] === wanted[part])) this.take(answer);
    }
    this.asking = false;
  }

  async fetched({ run, rank, module }) {
    const parts = { run, rank, module: module === null ? null : module || ROOT, format: this.format, exponent: this.exponent };
    const query = new URLSearchParams(Object.entries(parts).filter(([, part]) => part !== null));
    try {
      const answer = await fetch(`whatif.json?${query}`, { signal: AbortSignal.timeout(MAX_WAIT_MS) });
      return answer.ok ? await answer.json() : {};
    } catch {
      return null; // the daemon is away; the page says so at its top, and the next news asks again
    }
  }

  take(answer) {
    this.answer = answer.of ? answer : null;
    this.draw();
  }

  draw() {
    byId("whatif-all").hidden = !this.answer?.own;
    byId("whatif-card").hidden = !this.answer;
    if (!this.answer) {
      setText(byId("whatif-of"), "");
      return;
    }
    const { of, cut, outcome, notes, picture } = this.answer;
    setText(byId("whatif-of"), of);
    this.drawFormats();
    this.drawDial();
    setText(byId("whatif-cut"), cut);
    byId("whatif-cut").hidden = !cut;
    setText(byId("whatif-outcome"), outcome);
    setText(byId("whatif-notes"), notes);
    for (const id of ["whatif-fates", "chart-whatif"]) byId(id).hidden = !picture;
    drawFates(this.answer);
    if (picture) this.plot.draw(spectrum(picture, this.answer.whole, byId("chart-whatif").clientWidth));
  }

  drawFormats() {
    const { format: chosen, formats: choices, blocked } = this.answer;
    const cards = (formats) => [...new Set(formats.map(({ group }) => group))].flatMap((group) => [make("h3", {}, group), ...formats.filter((one) => one.group === group).map((one) => formatCard(one, chosen))]);
    rebuild(byId("whatif-formats"), [chosen, choices], () => [make("legend", { class: "unseen" }, "Format"), ...cards(choices)]);
    // Apart from what can be chosen: news of blocks must not take a choice from under the pointer.
    rebuild(byId("whatif-blocked"), blocked, () => cards(blocked));
    for (const id of ["whatif-blocked", "whatif-blocks"]) byId(id).hidden = !blocked.length;
  }

  drawDial() {
    if (!this.answer) return;
    const { now, low, high, has_scale: hasScale, window: words } = this.answer;
    const exponent = this.exponent ?? now;
    const dial = byId("whatif-scale");
    if (!this.dialling) {
      const marked = [now, exponent, low ?? now, high ?? now].map((e) => Math.max(-FARTHEST, Math.min(FARTHEST, e)));
      dial.min = String(Math.min(USUAL_SCALES[0], ...marked.map((e) => e - ROOM)));
      dial.max = String(Math.max(USUAL_SCALES[1], ...marked.map((e) => e + ROOM)));
    }
    dial.value = String(exponent);
    dial.setAttribute("aria-valuetext", `2 to the power of ${exponent}`);
    const { noScale } = this.wanted;
    setText(byId("whatif-value"), !hasScale && exponent === 0 ? noScale : scaleWords(exponent));
    const back = byId("whatif-now");
    setText(back, hasScale ? `back to ${powerOfTwo(now)}, as it is now` : `back to ${noScale}`);
    back.style.visibility = exponent === now ? "hidden" : "visible";
    const mark = byId("whatif-window");
    place(mark, dial, words ? Math.max(low ?? high, Number(dial.min)) : null, Math.min(high, Number(dial.max)));
    mark.dataset.open = String(low === null);
    setText(mark.firstElementChild, words);
    place(byId("whatif-mark"), dial, hasScale ? now : null, now);
    setText(byId("whatif-mark").firstElementChild, hasScale ? `now ${powerOfTwo(now)}` : "");
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

function drawFates({ whole, picture }) {
  const fates = picture?.fates ?? [];
  rebuild(byId("whatif-fates"), [whole, fates], () => [
    make("li", { class: "quiet" }, `Of ${whole}:`),
    ...fates.map(([fate, words, share, isSome]) => make("li", { "data-fate": fate, "data-none": String(!isSome) },
      make("span", { class: "swatch", "aria-hidden": "true" }), `${words} `, make("b", {}, share))),
  ]);
}

/** A scale as the axes write it, and in digits where those can be read. */
function scaleWords(exponent) {
  const power = powerOfTwo(exponent);
  return exponent < MIN_DIGITS || exponent > MAX_DIGITS ? power : `${power} = ${number(2 ** exponent)}`;
}
