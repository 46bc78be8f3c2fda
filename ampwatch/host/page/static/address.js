// What the address of the page asks for, and what of it is there. No page here: only the state.

import { isWhole } from "./state.js";
import { number } from "./words.js";

/** The parts of an address, in the order in which they are written. */
const PARTS = ["run", "rank", "step", "finding", "started", "with", "withrank"];

const SAME_START = 0.001; // addresses tell starts apart by the millisecond

/** An address that asks for nothing: the daemon says what is shown first. */
export const NOTHING = Object.freeze(Object.fromEntries(PARTS.map((part) => [part, null])));

/** Read the part of an address after "#"; each part is text, or null where it is not given. */
export function readAddress(hash) {
  const given = new URLSearchParams(hash.slice(1));
  return Object.fromEntries(PARTS.map((part) => [part, given.get(part)]));
}

/** Write what is asked for as the part of an address from "#" on; names stay as they can be read. */
export function writeAddress(asked) {
  const given = PARTS.filter((part) => asked[part] !== null && asked[part] !== undefined);
  const written = new URLSearchParams(given.map((part) => [part, asked[part]])).toString();
  return `#${written.replace(/%(3A|2F|40)/g, decodeURIComponent)}`;
}

/** What to say of a run that is not in the state. What follows "~" the daemon has added to its name. */
export function notHere(run) {
  return `Run ${run} is not shown: it has not started, or this daemon no longer watches it. If it has ended, see ampwatch report ${run.split("~")[0]}.`;
}

/**
 * Find in the state what is asked for.
 *
 * Returns the names of what is shown: `name`, `rank`, `finding` and `step` (null for none), `other` with
 * its own `name` and `rank` (null where nothing is compared), and `amiss`: a sentence for each part
 * that is not there, so that nothing else is shown silently in its place; `isGone` where that is the run.
 */
export function resolve(state, asked) {
  const amiss = [];
  const found = find(state.runs, asked.run, asked.started);
  if (found.amiss) amiss.push(found.amiss);
  const name = found.name ?? worst(state.runs);
  if (asked.run !== null && !found.name) amiss.push(`Showing ${name}.`);
  const run = state.runs[name];
  // Of a run that is shown in the place of another one, nothing that was asked of that one holds.
  const asks = asked.run === null || found.name ? asked : { ...NOTHING, with: asked.with, withrank: asked.withrank };
  const rank = rankOf(name, run, asks, amiss);
  const finding = findingOf(run, rank, asks.finding, amiss);
  const step = stepOf(run.ranks[rank], asks.step, amiss);
  const other = otherOf(state.runs, name, rank, asked, amiss);
  return { name, rank, finding, step, other, amiss, isGone: "amiss" in found };
}

/** Of the runs that are worst off the newest: the one that the list of runs begins with. */
function worst(runs) {
  const began = (name) => Object.values(runs[name].ranks).reduce((first, { started }) => Math.min(first, started), Infinity);
  return Object.keys(runs).reduce((a, b) => (runs[b].badness - runs[a].badness || began(a) - began(b)) < 0 ? b : a);
}

/** The run of a name. Of several of one name the daemon numbers those that started later, which
 * a log of the training cannot know: the time at which its rank started tells which one it is. */
function find(runs, asked, started) {
  if (asked === null) return {};
  const since = Number.parseFloat(started);
  const startedThen = (rank) => Math.abs(rank.started - since) < SAME_START;
  const ofThatName = Object.keys(runs).filter((name) => name === asked || name.startsWith(`${asked}~`));
  const then = ofThatName.find((name) => Object.values(runs[name].ranks).some(startedThen));
  if (then !== undefined) return { name: then };
  if (!(asked in runs)) return { amiss: notHere(asked) };
  if (started === null) return { name: asked };
  return { name: asked, amiss: `Run ${asked} of this address is no longer shown. This is a run of the same name that started at another time.` };
}

function rankOf(name, run, asked, amiss) {
  if (asked.rank !== null && asked.rank in run.ranks) return asked.rank;
  const speaker = String(run.speaker);
  if (asked.rank !== null) {
    const isElsewhere = /^\d+$/.test(asked.rank) && Number(asked.rank) < run.world_size;
    const why = isElsewhere ? `Rank ${asked.rank} of ${name} is not on this machine` : `${name} has no rank ${asked.rank}`;
    amiss.push(`${why}. Showing rank ${speaker}.`);
    return speaker;
  }
  const [having] = run.found[asked.finding] ?? [speaker];
  return String(having);
}

function findingOf(run, rank, key, amiss) {
  if (key === null || !isWhole(run.ranks[rank])) return null;
  if (key in run.ranks[rank].findings) return key;
  const [first, ranks] = run.found[key] ?? [null, 0];
  const more = ranks > 1 ? ` and ${number(ranks - 1)} more of this run have` : " of this run has";
  amiss.push(`Rank ${rank} has no finding ${key}${ranks ? `; rank ${first}${more} it` : ""}.`);
  return null;
}

function stepOf(rank, step, amiss) {
  if (step === null || !isWhole(rank)) return null;
  if (!/^\d+$/.test(step)) {
    amiss.push(`“${step}” is not a step.`);
    return null;
  }
  const first = Math.min(...Object.keys(rank.series).map(Number));
  if (rank.step === undefined || Number(step) > rank.step) {
    amiss.push(`Step ${number(Number(step))} has not run yet: ${rank.step === undefined ? "there is no step" : `the newest is ${number(rank.step)}`}.`);
  } else if (Number(step) < first) {
    amiss.push(`Step ${number(Number(step))} is no longer known: the history begins at step ${number(first)}.`);
  }
  return Number(step);
}

/** The rank that the shown one is compared with: of the same number, if its run has it. */
function otherOf(runs, name, rank, asked, amiss) {
  if (asked.with === null) return null;
  if (!(asked.with in runs)) {
    amiss.push(`There is no run ${asked.with} here to compare with.`);
    return null;
  }
  const { ranks, speaker } = runs[asked.with];
  const isSame = asked.with === name;
  const usual = isSame ? Object.keys(ranks).find((other) => other !== rank) : rank in ranks ? rank : String(speaker);
  const other = asked.withrank ?? usual;
  if (other === undefined || !(other in ranks)) {
    amiss.push(other === undefined ? `${name} has no other rank to compare with.` : `${asked.with} has no rank ${other} here to compare with.`);
    return null;
  }
  if (isSame && other === rank) {
    amiss.push(`Rank ${rank} of ${name} is shown already: choose another one to compare it with.`);
    return null;
  }
  return { name: asked.with, rank: other };
}
