// The charts of one rank over its steps: when to draw them, and the zoom they share.

import { byId, setText } from "/static/dom.js";
import { exponents } from "/static/exponents.js";
import { PANELS } from "/static/panels.js";
import { CONFIG, frame, onNewLook, palette, plotlyLoaded } from "/static/plot.js";
import { named } from "/static/state.js";

const HEIGHTS = { scale: 260, exponents: 360 };
const HEIGHT = 190;

export class Charts {
  constructor() {
    this.wanted = null;
    this.share = 1; // of the steps, the newest
    this.zoom = null; // first and last step, as the user has dragged them
    this.dragging = false;
    this.second = null; // the rank that is compared with
    this.marked = null; // a step
    this.ready = false;
    plotlyLoaded.then((found) => {
      this.ready = found;
      byId("no-plotly").hidden = found;
      for (const id of ["charts", "legend", "span", "heatmap"]) byId(id).hidden = !found;
      this.draw();
    });
    window.addEventListener("pointerup", () => { this.dragging = false; });
    document.addEventListener("visibilitychange", () => this.draw());
    onNewLook(() => this.draw());
  }

  /**
   * Draw the history of a rank if there is news in it. `subject` names it: a zoom is kept while
   * it stays the same; `exponents` is what the heatmap shows. What has changed is another object.
   */
  show(subject, columns, series, exponents) {
    const news = [Object.values(series).at(-1), exponents.columns, exponents.format, exponents.known, exponents.scaled];
    if (this.wanted?.subject === subject && news.every((part, i) => part === this.news[i])) return;
    if (this.wanted?.subject !== subject) this.zoom = null;
    this.wanted = { subject, columns, series, exponents };
    this.news = news;
    this.draw();
  }

  draw() {
    if (!this.wanted || !this.ready || this.dragging || document.hidden) return;
    const { columns, series, exponents: view } = this.wanted;
    const rows = newest(readRows(columns, series), this.share);
    const colour = palette();
    const end = (rows.at(-1)?.last_step ?? 0) + 1;
    const range = this.zoom ?? [rows[0]?.first ?? 0, end];
    for (const [name, build] of Object.entries(PANELS)) {
      const panel = build(rows, colour);
      this.plot(name, { ...panel, traces: [...panel.traces, ...this.secondLines(build, colour)] }, range, colour);
    }
    if (view.columns.length) {
      const width = byId("chart-exponents").clientWidth;
      const { caption, away, ...panel } = exponents(view, end, colour, width);
      setText(byId("limits-of"), caption);
      setText(byId("limits-away"), away);
      this.plot("exponents", panel, range, colour);
    }
  }

  plot(name, { traces, axis, margin = {}, ...drawn }, range, colour) {
    const element = byId(`chart-${name}`);
    const wide = name in HEIGHTS;
    const layout = { shapes: [], annotations: [], hovermode: "x", dragmode: "zoom", ...frame(colour, element.clientWidth, HEIGHTS[name] ?? HEIGHT), ...drawn };
    if (this.marked !== null) layout.shapes = [...layout.shapes, { type: "line", yref: "paper", x0: this.marked, x1: this.marked, y0: 0, y1: 1, line: { color: colour("--ink"), width: 1 } }];
    layout.margin = { ...layout.margin, ...margin };
    layout.xaxis = { ...layout.xaxis, range, tickformat: ",d", nticks: wide ? 9 : 5 };
    layout.yaxis = { ...layout.yaxis, ...axis };
    const isNew = !element.classList.contains("js-plotly-plot");
    window.Plotly.react(element, traces, layout, CONFIG);
    if (isNew) this.listen(element);
  }

  /** Draw the course of a second rank beside the first, dashed; null ends that. */
  compare(label, columns, series) {
    const news = label && [label, series && Object.values(series).at(-1)].join();
    if (news === this.second?.news) return;
    this.second = label && { news, columns, series };
    this.draw();
  }

  /** Mark a step by a line; null ends that. */
  mark(step) {
    if (step === this.marked) return;
    this.marked = step;
    this.draw();
  }

  /** The lines of the second rank in a panel, without its marks. */
  secondLines(build, colour) {
    if (!this.second) return [];
    const rows = newest(readRows(this.second.columns, this.second.series), this.share);
    const lines = build(rows, colour).traces.filter((trace) => trace.mode === "lines" && trace.hoverinfo === "text");
    return lines.map((trace) => ({ ...trace, line: { ...trace.line, dash: "dash", color: colour("--second") } }));
  }

  /** Draw only the newest `share` of the steps. */
  narrow(share) {
    Object.assign(this, { share, zoom: null });
    this.draw();
  }

  /** Zooming one chart zooms all, for they share their steps; a double click shows them all again. */
  listen(element) {
    element.addEventListener("pointerdown", () => { this.dragging = true; });
    element.on("plotly_relayout", (change) => {
      if (!("xaxis.range[0]" in change)) return;
      this.zoom = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      this.dragging = false;
      this.draw();
    });
    element.on("plotly_doubleclick", () => this.narrow(this.share));
  }
}

/** Rows as objects, in the order of their steps. */
function readRows(columns, series) {
  return Object.entries(series)
    .map(([first, cells]) => ({ first: Number(first), ...named(columns, cells) }))
    .sort((a, b) => a.first - b.first);
}

function newest(rows, share) {
  const end = rows.at(-1)?.last_step ?? 0;
  return rows.filter((row) => row.last_step >= end * (1 - share));
}
