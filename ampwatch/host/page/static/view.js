// The words, lists and tables of the page. Data becomes text only, never markup.

import { byId, make, rebuild, setText } from "/static/dom.js";
import { SKIPS, SYMBOLS, number, span } from "/static/words.js";

const NO_NEWS = "It ends by itself when nothing is left to watch: start training, or run `ampwatch daemon`."
  + " This page reconnects by itself and keeps what it has.";
const NO_TOKEN = "The daemon is its user's alone: open the address that `ampwatch url` prints.";

function level(word) {
  return make("span", { class: "level", "data-level": word }, `${SYMBOLS[word]} ${word}`);
}

/** A button that selects `key`: a name, a state, and what to say of it. */
function choice(key, name, pressed, word, words, onSelect) {
  const attributes = { type: "button", "data-key": key, "aria-pressed": String(pressed) };
  const button = make("button", attributes, make("span", { class: "name" }, name), level(word), words);
  button.addEventListener("click", () => onSelect(key));
  return button;
}

/** Show whether news arrive. */
export function showConnection({ live, heardAt, wantsToken }) {
  const connection = byId("connection");
  connection.dataset.state = live ? "live" : "gone";
  setText(connection, live ? "live" : "not connected");
  const gone = byId("gone");
  gone.hidden = live;
  if (live) return;
  const last = heardAt ? `last news ${span((Date.now() - heardAt) / 1000)} ago` : "no news yet";
  setText(gone, wantsToken ? `token wanted: ${last}. ${NO_TOKEN}` : `daemon gone: ${last}. ${NO_NEWS}`);
}

/** Show the runs to choose from; nothing to choose with one run. */
export function showRuns(runs, selected, onSelect) {
  const nav = byId("runs");
  const names = Object.keys(runs);
  nav.hidden = names.length < 2;
  const source = names.map((n) => [n, runs[n].level, runs[n].sentence, n === selected]);
  rebuild(nav, source, () => names.map((name) => {
    const sentence = make("span", { class: "sentence" }, runs[name].sentence);
    return choice(name, name, name === selected, runs[name].level, sentence, onSelect);
  }));
}

/** Show the state of a run in words, and say it aloud when it changes. */
export function showHeadline(name, run) {
  setText(byId("run-name"), name);
  const word = byId("run-level");
  word.dataset.level = run.level;
  setText(word, `${SYMBOLS[run.level]} ${run.level}`);
  setText(byId("run-sentence"), run.sentence);
  const advice = byId("run-advice");
  advice.hidden = !run.advice;
  setText(advice, run.advice && `What to change: ${run.advice}`);
  setText(document.querySelector("title"), `${SYMBOLS[run.level]} ${name} ${run.level} · ampwatch`);
  const announcement = byId("announcement");
  if (announcement.dataset.state === `${name} ${run.level}`) return;
  announcement.dataset.state = `${name} ${run.level}`;
  setText(announcement, `${name} ${run.level}: ${run.sentence}`);
}

/** Show the heartbeat of every rank; the selected one is drawn below. */
export function showRanks(run, selected, now, onSelect) {
  const ranks = Object.entries(run.ranks);
  const front = Math.max(...ranks.map(([, rank]) => rank.step ?? 0));
  const elsewhere = run.world_size - ranks.length;
  const absent = `; ${number(elsewhere)} of ${number(run.world_size)} ranks are not on this machine`;
  setText(byId("ranks-title"), `Heartbeat${elsewhere > 0 ? absent : ""}`);
  const list = byId("ranks");
  const source = ranks.map(([index, rank]) => [index, rank.level, index === selected]);
  rebuild(list, source, () => ranks.map(([index, rank]) => {
    const beatOf = make("span", { class: "beat" });
    return choice(index, `rank ${index}`, index === selected, rank.level, beatOf, onSelect);
  }));
  ranks.forEach(([, rank], i) => setText(list.children[i].querySelector(".beat"), beat(rank, front, now)));
}

function beat(rank, front, now) {
  const age = `${span(now - rank.last_seen)} ago`;
  if (rank.step === undefined) return `no step yet, started ${age}`;
  const behind = front - rank.step;
  return `step ${number(rank.step)}, ${age}${behind > 1 ? `, ${number(behind)} behind` : ""}`;
}

/** Show the figures of a rank. */
export function showFigures(rank) {
  const cell = ([title, [figure, note]]) => make("div", {}, make("dt", {}, title),
    make("dd", { class: "figure" }, figure), make("dd", { class: "note" }, note));
  rebuild(byId("figures"), rank.figures, () => Object.entries(rank.figures).map(cell));
}

/** Say from where on the charts tell: a daemon that came late has not read the first steps. */
export function showHistory(series) {
  const first = Math.min(...Object.keys(series).map(Number));
  setText(byId("charts-title"), first > 0 && Number.isFinite(first) ? `History from step ${number(first)}` : "Since the start");
}

/** Show which marks stand for which skips. */
export function showLegend() {
  byId("legend").replaceChildren(...SKIPS.map((skip) => {
    const sign = make("span", { "aria-hidden": "true" }, skip.sign);
    sign.style.color = `var(${skip.colour})`;
    return make("li", {}, sign, ` ${skip.name}: ${skip.words}`);
  }));
}

/** Show the findings of a rank, worst first, each symptom under its root. */
export function showFindings(rank) {
  const any = Object.keys(rank.findings).length > 0;
  byId("findings").hidden = !any;
  byId("no-findings").hidden = any;
  const body = document.querySelector("#findings tbody");
  const { stories, findings } = rank; // the daemon says in which order: the same as in reports
  rebuild(body, [stories, findings], () => stories.map(([key, depth]) => findingRow(findings[key], depth, findings)));
}

function findingRow(f, depth, findings) {
  const place = [f.place, f.op && `op ${f.op}`, f.dtype, f.phase, f.source].filter(Boolean).join(" · ");
  const evidence = Object.entries(f.evidence).map(([name, v]) => `${name} ${number(v)}`).join(", ");
  const what = make("td", { "data-title": "Finding" }, make("p", { class: "summary" }, f.summary));
  what.append(make("p", { class: "place" }, make("code", {}, f.kind), place && ` ${place}`));
  if (evidence) what.append(make("p", { class: "place" }, evidence));
  const cause = depth ? findings[f.caused_by] : undefined;
  if (cause) what.prepend(make("p", { class: "place" }, `↳ explained by ${cause.kind} (${cause.place})`));
  return make("tr", { "data-depth": Math.min(depth, 1), "data-current": f.current, "data-kind": f.kind },
    make("td", { "data-title": "Severity" }, level(f.severity)),
    what,
    make("td", { class: "count", "data-title": "Since step" }, number(f.first_step)),
    make("td", { class: "count", "data-title": "Last seen" }, number(f.last_step)),
    make("td", { class: "count", "data-title": "Steps" }, number(f.count)),
    make("td", { class: "advice", "data-title": "What to change" }, f.advice,
      f.page && make("p", { class: "place" }, make("a", { href: f.page }, `More about ${f.kind}`))));
}

/** Show what does not change about a rank. */
export function showFacts(rank) {
  const started = new Date(rank.started * 1000).toLocaleString();
  definitions(byId("facts"), { user: rank.user, host: rank.host, process: rank.pid, ampwatch: rank.version, started, ...rank.facts });
}

/** Show the rings that cannot be read, and why. */
export function showProblems(problems) {
  byId("problems-box").hidden = !Object.keys(problems).length;
  definitions(byId("problems"), problems);
}

function definitions(list, entries) {
  const line = ([term, text]) => make("div", {}, make("dt", {}, term), make("dd", {}, String(text)));
  rebuild(list, entries, () => Object.entries(entries).map(line));
}

/** Show the page for no run at all. */
export function showEmpty(empty) {
  byId("empty").hidden = !empty;
  byId("run").hidden = empty;
  if (empty) {
    byId("runs").hidden = true;
    setText(document.querySelector("title"), "no runs yet · ampwatch");
  }
}
