// The page: follows the daemon, remembers what is selected, and shows it.

import { NOTHING, notHere, readAddress, resolve, writeAddress } from "./address.js";
import { Charts } from "./charts.js";
import { Compare, titled } from "./compare.js";
import { byId, setText } from "./dom.js";
import { showGpus } from "./gpus.js";
import { showKernels } from "./kernels.js";
import { Links } from "./links.js";
import { ModelMap } from "./map.js";
import { showPhases } from "./phases.js";
import { Precision } from "./precision.js";
import { Ranges } from "./ranges.js";
import { Ranks } from "./ranks.js";
import { Runs, aboutRun, beganWhen } from "./runs.js";
import { Stream, isWhole } from "./state.js";
import * as view from "./view.js";

const THEMES = ["system", "light", "dark"];
const charts = new Charts();
const ranges = new Ranges(show);
const precision = new Precision(show);
const map = new ModelMap((module) => ranges.select(module));
const runs = new Runs((run) => select(run, null));
const ranks = new Ranks((rank) => select(shown.name, rank));
const compare = new Compare(compareWith);
const links = new Links(linkTo);
let asked = NOTHING; // by the address: null where the daemon says what is shown first
let addressRead = null;
let isArriving = false; // an address was read, and nothing is shown of it yet
let shown = null; // of what is asked for, what is there
let state = null;
let stream = null;
let connection = { live: true, heardAt: 0, wantsToken: false };

function show() {
  if (state === null) return;
  const isEmpty = !Object.keys(state.runs).length;
  view.showEmpty(isEmpty);
  view.showProblems(state.problems);
  for (const id of ["ended", "ended-too"]) byId(id).hidden = !state.lists_ended;
  document.getElementById("version").textContent = `ampwatch ${state.version}.`;
  if (isEmpty) {
    const isGone = asked.run !== null;
    view.showAmiss(isGone ? [notHere(asked.run)] : [], isGone && state.lists_ended);
    return;
  }
  shown = resolve(state, asked);
  const { name, rank } = shown;
  const run = state.runs[name];
  view.showAmiss(shown.amiss, shown.isGone && state.lists_ended);
  runs.show(state.runs, name, daemonNow());
  ranks.show(run, rank, daemonNow());
  if (!isHere(shown) || !isHere(shown.other ?? shown)) stream.look({ run: name, rank, beside: shown.other && { run: shown.other.name, rank: shown.other.rank } });
  if (!isHere(shown)) return; // what is shown stays until then, headline and all
  view.showHeadline(name, run);
  view.showLinks(run);
  view.showFigures(run.ranks[rank]);
  view.showHistory(run.ranks[rank].series);
  showPhases(run.ranks[rank].phases);
  setText(byId("charts-since"), beganWhen(aboutRun(run), daemonNow()));
  view.showFindings(run.ranks[rank], state.glossary);
  view.showFacts(run.ranks[rank]);
  compare.show(state.runs, shown, shown.other, addressOf);
  const { ops, kernels, ceiling } = run.ranks[rank].precision;
  precision.show(state.op_columns, ops);
  showKernels(state.kernel_columns, kernels, ceiling);
  showGpus(state.gpus, name, rank, daemonNow());
  const subject = `${name} ${rank} ${run.ranks[rank].started}`;
  map.show(name, rank, subject);
  const exponents = ranges.show(name, rank, subject, state, run.ranks[rank].ranges);
  showSecondCourse(shown.other);
  showStep(shown.step ?? run.ranks[rank].findings[shown.finding]?.first_step ?? null);
  charts.show(subject, state.columns, run.ranks[rank].series, exponents, state.phases);
  // Last: a row is scrolled to where everything above it has its height.
  links.show(shown.finding, (key) => addressOf(shown, key));
  if (isArriving && shown.finding === null && shown.step !== null) byId("charts").scrollIntoView({ block: "center" });
  isArriving = false;
}

/** Whether everything about a rank is here, and not only its line. */
function isHere({ name, rank }) {
  return isWhole(state.runs[name].ranks[rank]);
}

/** Draw the course of the rank that the shown one is compared with; null for none. */
function showSecondCourse(other) {
  const rank = other && state.runs[other.name].ranks[other.rank];
  if (rank === null || !isWhole(rank)) charts.compare(null);
  else charts.compare(titled(other), state.columns, rank.series);
}

/** Mark a step in the charts, and say so; null for none. */
function showStep(step) {
  const input = byId("step");
  if (document.activeElement !== input) input.value = step ?? "";
  charts.mark(step);
}

/** Choose a run and a rank of it: null for the one that speaks for the run. */
function select(run, rank) {
  const isSameRun = run === shown.name;
  const { name: other, rank: otherRank } = shown.other ?? {};
  // What is compared with stays, unless it is the one that is now chosen, or another rank of the run that is left.
  const isKept = isSameRun ? other !== run || otherRank !== rank : other !== run && other !== shown.name;
  const compared = shown.other && isKept ? { with: asked.with, withrank: asked.withrank } : {};
  ask({ ...NOTHING, run, rank, step: isSameRun ? asked.step : null, ...compared }, "pushState");
}

/** Choose a rank of a run to compare with; null ends the comparison. */
function compareWith(name, rank) {
  const { name: run, rank: own } = shown;
  ask({ ...asked, run, rank: own, with: name, withrank: rank }, "pushState");
}

/** Put the link to a finding into the address. */
function linkTo(finding) {
  ask(linked(shown, finding), "replaceState");
}

/** What an address asks for that leads to a finding; the start of the rank tells its run from others of its name. */
function linked({ name, rank }, finding) {
  const { started } = state.runs[name].ranks[rank];
  return { ...NOTHING, run: name, rank, finding, started: started.toFixed(3) };
}

function addressOf(one, finding) {
  return writeAddress(linked(one, finding));
}

/** Show what is asked for, and put it into the address, so that it can be handed on and come back to. */
function ask(wanted, how) {
  asked = wanted;
  const address = writeAddress(asked);
  if (address !== location.hash) history[how](null, "", address);
  addressRead = location.hash;
  show();
}

/** Take what is asked for from the address: alerts, logs and reports link to it. */
function readLocation() {
  if (location.hash === addressRead) return;
  addressRead = location.hash;
  asked = readAddress(location.hash);
  links.goTo(asked.finding);
  isArriving = true;
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
  map.draw();
}

view.showLegend();
view.rememberFolds();
view.unfoldForPrint();
setTheme(THEMES.includes(localStorage.getItem("ampwatch-theme")) ? localStorage.getItem("ampwatch-theme") : "system");
document.getElementById("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
});
document.getElementById("span").addEventListener("change", (event) => charts.narrow(Number(event.target.value)));
document.getElementById("metrics-address").textContent = new URL("metrics", location.href).href;
byId("step").addEventListener("change", (event) => {
  const { name: run, rank } = shown;
  ask({ ...asked, run, rank, step: event.target.value || null, finding: null }, "replaceState");
});
byId("amiss-end").addEventListener("click", () => {
  byId("main").focus();
  ask(shown ? { ...NOTHING, run: shown.name, rank: shown.rank } : NOTHING, "replaceState");
});
// The address says what is shown, so going past the bar leaves it alone.
document.querySelector(".skip-link").addEventListener("click", (event) => {
  event.preventDefault();
  byId("main").focus();
});
for (const event of ["hashchange", "popstate"]) window.addEventListener(event, readLocation);
readLocation();
setInterval(() => view.showConnection(connection), 1000);

stream = new Stream(
  { run: asked.run, rank: asked.rank },
  (news) => { state = news; show(); },
  (live, heardAt, wantsToken) => {
    connection = { live, heardAt, wantsToken };
    view.showConnection(connection);
  },
);
