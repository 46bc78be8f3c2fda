// The page: follows the daemon, remembers what is selected, and shows it.

import { Charts } from "/static/charts.js";
import { showGpus } from "/static/gpus.js";
import { showKernels } from "/static/kernels.js";
import { Precision } from "/static/precision.js";
import { Ranges } from "/static/ranges.js";
import { Stream } from "/static/state.js";
import * as view from "/static/view.js";

const THEMES = ["system", "light", "dark"];
const selected = { run: null, rank: null }; // null: what the daemon would speak of first
const charts = new Charts();
const ranges = new Ranges(show);
const precision = new Precision(show);
let state = null;
let connection = { live: true, heardAt: 0 };

function show() {
  if (state === null) return;
  const names = Object.keys(state.runs);
  view.showEmpty(!names.length);
  view.showProblems(state.problems);
  document.getElementById("version").textContent = `ampwatch ${state.version}.`;
  if (!names.length) return;
  const name = names.includes(selected.run) ? selected.run : worst(names);
  const run = state.runs[name];
  const rank = selected.rank in run.ranks ? selected.rank : String(run.speaker);
  view.showRuns(state.runs, name, (chosen) => select(chosen, null));
  view.showHeadline(name, run);
  view.showRanks(run, rank, daemonNow(), (chosen) => select(name, chosen));
  view.showFigures(run.ranks[rank]);
  view.showHistory(run.ranks[rank].series);
  view.showFindings(run.ranks[rank]);
  view.showFacts(run.ranks[rank]);
  const { ops, kernels, ceiling } = run.ranks[rank].precision;
  precision.show(state.op_columns, ops);
  showKernels(state.kernel_columns, kernels, ceiling);
  showGpus(state.gpus, name, rank, daemonNow());
  const subject = `${name} ${rank} ${run.ranks[rank].started}`;
  const exponents = ranges.show(subject, state, run.ranks[rank].ranges);
  charts.show(subject, state.columns, run.ranks[rank].series, exponents);
}

/** The first of the runs that are worst off. */
function worst(names) {
  const order = ["failing", "failed", "stale", "needs attention", "calibrating", "starting", "healthy", "finished"];
  return names.reduce((a, b) => (order.indexOf(state.runs[b].level) < order.indexOf(state.runs[a].level) ? b : a));
}

function select(run, rank) {
  Object.assign(selected, { run, rank });
  show();
}

/** The daemon's clock, so that a wrong clock here makes no heartbeat look old. */
function daemonNow() {
  return state.now + (connection.live ? (Date.now() - connection.heardAt) / 1000 : 0);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("ampwatch-theme", theme);
  charts.draw();
  ranges.draw();
}

view.showLegend();
setTheme(THEMES.includes(localStorage.getItem("ampwatch-theme")) ? localStorage.getItem("ampwatch-theme") : "system");
document.getElementById("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
document.getElementById("span").addEventListener("change", (event) => charts.narrow(Number(event.target.value)));
document.getElementById("metrics-address").textContent = new URL("/metrics", location.href).href;
setInterval(() => view.showConnection(connection.live, connection.heardAt), 1000);

new Stream(
  (news) => { state = news; show(); },
  (live, heardAt) => {
    connection = { live, heardAt };
    view.showConnection(live, heardAt);
  },
);
