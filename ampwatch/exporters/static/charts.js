// The charts of one rank: Plotly, the theme, the zoom they share.

import { PANELS } from "/static/panels.js";

const PLOTLY = "/static/plotly.min.js";
const FONT = getComputedStyle(document.body).fontFamily;
const CONFIG = { responsive: true, displayModeBar: false, doubleClick: false };

/** Load Plotly once; the promise is false where it is not installed beside the daemon. */
function loadPlotly() {
  return new Promise((resolve) => {
    const script = document.createElement("script");
    script.src = PLOTLY;
    script.addEventListener("load", () => resolve(true));
    script.addEventListener("error", () => resolve(false));
    document.head.append(script);
  });
}

export class Charts {
  constructor() {
    this.elements = Object.fromEntries(Object.keys(PANELS).map((n) => [n, document.getElementById(`chart-${n}`)]));
    this.wanted = null;
    this.share = 1; // of the steps, the newest
    this.zoom = null; // first and last step, as the user has dragged them
    this.dragging = false;
    this.ready = false;
    loadPlotly().then((found) => {
      this.ready = found;
      document.getElementById("no-plotly").hidden = found;
      for (const id of ["charts", "legend", "span"]) document.getElementById(id).hidden = !found;
      this.draw();
    });
    window.addEventListener("pointerup", () => { this.dragging = false; });
    document.addEventListener("visibilitychange", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /**
   * Draw the history of a rank if there is news in it. `subject` names it: a zoom is kept while
   * it stays the same.
   */
  show(subject, columns, series) {
    const newestRow = Object.values(series).at(-1); // a changed row is another array
    if (this.wanted?.subject === subject && this.newestRow === newestRow) return;
    if (this.wanted?.subject !== subject) this.zoom = null;
    this.wanted = { subject, columns, series };
    this.newestRow = newestRow;
    this.draw();
  }

  draw() {
    if (!this.wanted || !this.ready || this.dragging || document.hidden) return;
    const { columns, series } = this.wanted;
    const rows = newest(readRows(columns, series), this.share);
    const colour = palette();
    const range = this.zoom ?? (rows.length ? [rows[0].first, rows.at(-1).last_step + 1] : [0, 1]);
    for (const [name, build] of Object.entries(PANELS)) {
      const { traces, axis, shapes = [], annotations = [] } = build(rows, colour);
      const layout = frame(range, colour, name === "scale");
      layout.yaxis = { ...layout.yaxis, ...axis };
      const element = this.elements[name];
      const isNew = !element.classList.contains("js-plotly-plot");
      window.Plotly.react(element, traces, { ...layout, shapes, annotations }, CONFIG);
      if (isNew) this.listen(element);
    }
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

/** Look up the colours of the theme in use, in the form that Plotly knows. */
function palette() {
  const probe = document.createElement("span");
  document.body.append(probe);
  const found = new Map();
  queueMicrotask(() => probe.remove());
  return (name) => {
    if (!found.has(name)) {
      probe.style.color = `var(${name})`;
      found.set(name, getComputedStyle(probe).color);
    }
    return found.get(name);
  };
}

/** Rows as objects, in the order of their steps. */
function readRows(columns, series) {
  return Object.entries(series)
    .map(([first, cells]) => ({
      first: Number(first), ...Object.fromEntries(columns.map((column, i) => [column, cells[i]])),
    }))
    .sort((a, b) => a.first - b.first);
}

function newest(rows, share) {
  const end = rows.at(-1)?.last_step ?? 0;
  return rows.filter((row) => row.last_step >= end * (1 - share));
}

function frame(range, colour, wide) {
  const font = { family: FONT, size: 12, color: colour("--muted") };
  const grid = colour("--grid");
  const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid, zeroline: false };
  return {
    height: wide ? 260 : 190,
    margin: { l: 52, r: 12, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font,
    showlegend: false,
    hovermode: "x",
    dragmode: "zoom",
    separators: ".\u202f",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { ...font, color: colour("--ink") } },
    xaxis: { ...axis, range, showgrid: false, ticks: "outside", tickformat: ",d", nticks: wide ? 9 : 5 },
    yaxis: { ...axis, fixedrange: true },
  };
}
