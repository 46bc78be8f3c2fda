// What all charts have in common: Plotly, the colours of the theme, the frame.

const PLOTLY = "/static/plotly.min.js";
const FONT = getComputedStyle(document.body).fontFamily;

export const CONFIG = { displayModeBar: false, doubleClick: false };

/** Load Plotly once; the promise is false where it is not installed beside the daemon. */
export const plotlyLoaded = new Promise((resolve) => {
  const script = document.createElement("script");
  script.src = PLOTLY;
  script.addEventListener("load", () => resolve(true));
  script.addEventListener("error", () => resolve(false));
  document.head.append(script);
});

/** Call `draw` when charts look different without any news: in another theme of the system, in another width. */
export function onNewLook(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const main = document.querySelector("main");
  let width = main.clientWidth;
  new ResizeObserver(() => {
    if (width === main.clientWidth) return;
    width = main.clientWidth;
    draw();
  }).observe(main);
}

/** Look up the colours of the theme in use, in the form that Plotly knows. */
export function palette() {
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

/** The layout of a chart without data: size, fonts, margins, quiet axes. */
export function frame(colour, width, height) {
  const font = { family: FONT, size: 12, color: colour("--muted") };
  const grid = colour("--grid");
  const axis = { gridcolor: grid, linecolor: grid, tickcolor: grid, zeroline: false };
  return {
    width,
    height,
    margin: { l: 52, r: 12, t: 8, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font,
    showlegend: false,
    separators: ".\u202f",
    hoverlabel: { bgcolor: colour("--raised"), bordercolor: colour("--line"), font: { ...font, color: colour("--ink") } },
    xaxis: { ...axis, showgrid: false, ticks: "outside" },
    yaxis: { ...axis, fixedrange: true },
  };
}
