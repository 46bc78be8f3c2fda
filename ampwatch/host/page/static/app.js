// The page: follows the daemon, remembers what is selected, and shows it.

import { Charts } from "/static/charts.js";
import { showGpus } from "/static/gpus.js";
import { showKernels } from "/static/kernels.js";
import { Precision } from "/static/precision.js";
import { Ranges } from "/static/ranges.js";
import { Stream, isWhole } from "/static/state.js";
import * as view from "/static/view.js";

const THEMES = ["system", "light", "dark"];
const selected = { run: null, rank: null, started: NaN }; // null: what the daemon would speak of first
const charts = new Charts();
const ranges = new Ranges(show);
const precision = new Precision(show);
let state = null;
let stream = null;
let connection = { live: true, heardAt: 0, wantsToken: false };

function show() {
  if (state === null) return;
  const names = Object.keys(state.runs);
  view.showEmpty(!names.length);
  view.showProblems(state.problems);
  document.getElementById("version").textContent = `ampwatch ${state.version}.`;
  if (!names.length) return;
  const name = asked(names) ?? worst(names);
  const run = state.runs[name];
  const rank = selected.rank in run.ranks ? selected.rank : String(run.speaker);
  view.showRuns(state.runs, name, (chosen) => select(chosen, null));
  view.showHeadline(name, run);
  view.showRanks(run, rank, daemonNow(), (chosen) => select(name, chosen));
  if (!isWhole(run.ranks[rank])) {
    stream.look({ run: name, rank });
    return;
  }
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

/** The run that was selected. Of several of one name the daemon numbers those that started later, which
 * a log of the training cannot know: the time at which its rank started tells which one it is. */
function asked(names) {
  const startedThen = (rank) => Math.abs(rank.started - selected.started) < 0.001;
  const ofThatName = names.filter((name) => name === selected.run || name.startsWith(`${selected.run}~`));
  return ofThatName.find((name) => Object.values(state.runs[name].ranks).some(startedThen))
    ?? names.find((name) => name === selected.run);
}

/** The first of the runs that are worst off. */
function worst(names) {
  return names.reduce((a, b) => (state.runs[b].badness < state.runs[a].badness ? b : a));
}

/** Choose a run and a rank of it, and put them into the address, so that it can be handed on. */
function select(run, rank) {
  Object.assign(selected, { run, rank, started: NaN });
  stream.look(selected);
  const chosen = new URLSearchParams(rank === null ? { run } : { run, rank });
  history.replaceState(null, "", `#${chosen}`);
  show();
}

/** Take the run, the rank and its start from the address: alerts, logs and reports link to them. */
function selectFromAddress() {
  const address = new URLSearchParams(location.hash.slice(1));
  const started = Number.parseFloat(address.get("started"));
  Object.assign(selected, { run: address.get("run"), rank: address.get("rank"), started });
  stream?.look(selected);
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
window.addEventListener("hashchange", selectFromAddress);
selectFromAddress();
setInterval(() => view.showConnection(connection), 1000);

stream = new Stream(
  selected,
  (news) => { state = news; show(); },
  (live, heardAt, wantsToken) => {
    connection = { live, heardAt, wantsToken };
    view.showConnection(connection);
  },
);
