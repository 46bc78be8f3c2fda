// The charts of one rank over its steps: what they show together, and the zoom and the cursor they share.

import { bySteps, byTime } from "./axes.js";
import { byId, make, setText } from "./dom.js";
import { exponents } from "./exponents.js";
import { PANELS } from "./panels.js";
import { phases } from "./phases.js";
import { Plot, onNewLook } from "./plot.js";
import { byStep } from "./state.js";

const WIDE = 620; // px; a narrower chart has fewer labels
const HEATMAP = "exponents";
const STRIP = "phases";
const UNSEEN_MS = 2000; // a chart that is out of view follows this slowly

export class Charts {
  constructor() {
    this.wanted = null;
    this.other = null; // a second run beside it
    this.marked = null; // a step
    this.share = 1; // of the steps, the newest
    this.zoom = null; // first and last step, as the user has dragged them
    this.axis = "step";
    this.waiting = new Set(); // to be drawn, one a frame
    this.stale = new Set(); // not drawn since there was news, for nobody sees them
    const wishes = (name) => ({ onZoom: (ends) => this.zoomTo(ends), onReset: () => this.narrow(this.share), onSeen: () => this.catchUp([name]) });
    const names = { ...Object.fromEntries(Object.entries(PANELS).map(([name, panel]) => [name, panel.name])), [STRIP]: "Where the time of a step goes", [HEATMAP]: "Exponents of the gradients" };
    this.plots = Object.fromEntries(Object.entries(names).map(([name, words]) => [name, new Plot(byId(`chart-${name}`), `${words} over the run`, wishes(name))]));
    byId("axis").addEventListener("change", (event) => {
      this.axis = event.target.value;
      this.draw();
    });
    onNewLook(() => this.draw());
  }

  /**
   * Draw the history of a rank if there is news in it. `subject` names it: a zoom is kept while
   * it stays the same; `exponents` is what the heatmap shows, `named` are the phases of a step by label and
   * in words. What has changed is another object.
   */
  show(subject, columns, series, exponents, named = []) {
    const news = [Object.values(series).at(-1), exponents.columns, exponents.format, exponents.known, exponents.scaled];
    if (this.wanted?.subject === subject && news.every((part, i) => part === this.news[i])) return;
    const isOther = this.wanted?.subject !== subject;
    if (isOther) this.zoom = null;
    this.wanted = { subject, exponents, named, rows: byStep(columns, series) };
    this.news = news;
    this.draw(isOther);
  }

  /** Draw a second run beside the first, on the same axes; `label` null takes it away. */
  compare(label, columns, series) {
    const newest = label === null ? null : Object.values(series).at(-1);
    if ((this.other?.label ?? null) === label && this.other?.newest === newest) return;
    this.other = label === null ? null : { label, newest, rows: byStep(columns, series) };
    byId("second").replaceChildren(...(label === null ? [] : [make("span", { class: "dashes", "aria-hidden": "true" }), label]));
    byId("second").hidden = label === null;
    this.draw();
  }

  /** Mark a step in all charts; null takes the mark away. */
  mark(step) {
    if (step === this.marked) return;
    this.marked = step;
    this.draw();
  }

  /** Draw only the newest `share` of the steps. */
  narrow(share) {
    Object.assign(this, { share, zoom: null });
    this.draw();
  }

  zoomTo(places) {
    this.zoom = places.map((place) => this.scale.step(place));
    this.draw();
  }

  /** Draw one chart a frame: all at once would hold up what else moves. If not `all`, those out of view come later. */
  draw(all = true) {
    if (!this.wanted) return;
    for (const [name, plot] of Object.entries(this.plots)) {
      this.stale.add(name);
      if (all || plot.isSeen) this.catchUp([name]);
      else this.later ??= setTimeout(() => this.drawLate(), UNSEEN_MS);
    }
    const { rows } = this.wanted;
    const end = (rows.at(-1)?.last_step ?? 0) + 1;
    const longest = Math.max(end, (this.other?.rows.at(-1)?.last_step ?? 0) + 1);
    this.scale = this.axis === "time" ? byTime(rows, this.other !== null) : bySteps();
    const others = this.axis === "time" && this.other ? byTime(this.other.rows, true) : bySteps();
    const first = Math.max(rows[0]?.first ?? 0, this.share < 1 ? longest * (1 - this.share) : 0);
    this.steps = this.zoom ?? [first, end];
    this.range = this.steps.map(this.scale.at);
    if (this.other && !this.zoom) this.range[1] = Math.max(this.range[1], others.at(longest));
    this.beside = this.other && { label: this.other.label, at: others.at, place: this.scale.at, rows: between(this.other.rows, this.range.map(others.step)) };
    this.end = end;
  }

  drawLate() {
    this.later = undefined;
    this.catchUp(this.stale);
  }

  /** Draw those charts of which there is news: one that comes into view as it was costs nothing. */
  catchUp(names) {
    for (const name of names) {
      if (!this.stale.delete(name)) continue;
      if (!this.waiting.size) requestAnimationFrame(() => this.drawNext());
      this.waiting.add(name);
    }
  }

  drawNext() {
    const [name] = this.waiting;
    if (name === undefined) return;
    this.waiting.delete(name);
    // Before it is drawn: if that fails, the others are drawn anyway.
    if (this.waiting.size) requestAnimationFrame(() => this.drawNext());
    const width = byId(`chart-${name}`).clientWidth;
    const isEmpty = name === HEATMAP && !this.wanted.exponents.columns.length;
    if (!width) this.stale.add(name); // hidden: drawn when it is seen
    else if (!isEmpty) this.plots[name].draw(this.framed(this.picture(name, width), name, width));
  }

  picture(name, width) {
    const { rows, named: order, exponents: view } = this.wanted;
    if (name === STRIP) return phases(order, between(rows, this.steps), this.beside);
    if (name !== HEATMAP) return PANELS[name].picture(between(rows, this.steps), this.beside);
    const { caption, away, picture } = exponents(view, this.end, width);
    setText(byId("limits-of"), caption);
    setText(byId("limits-away"), away);
    return picture;
  }

  /** A picture with the axis that all share, and the step that is marked. */
  framed(picture, name, width) {
    const marker = this.marked === null ? [] : [{ kind: "rule", x: this.marked, colour: "--ink", width: 1.5, dash: "2 3" }];
    const count = width > WIDE ? 9 : 4;
    return { ...picture, layers: [...picture.layers, ...marker], x: { range: this.range, at: this.scale.at, ticks: this.scale.ticks(this.range, count) } };
  }
}

/** The rows of some steps, with one more on each side so that lines go on to the edges. */
function between(rows, [from, to]) {
  const first = rows.findIndex((row) => row.last_step >= from);
  const after = rows.findIndex((row) => row.first > to);
  return first < 0 ? [] : rows.slice(Math.max(0, first - 1), after < 0 ? rows.length : after + 1);
}
