// What is known of the ranges of one rank: heatmap, what-if panel and table, and what connects them.

import { Blocks } from "/static/blocks.js";
import { byId, setText } from "/static/dom.js";
import { Explorer } from "/static/explorer.js";
import { readColumns } from "/static/exponents.js";
import { Modules, label } from "/static/modules.js";
import { named } from "/static/state.js";
import { number, value } from "/static/words.js";

export class Ranges {
  /** @param {() => void} onChange called when the user has chosen something that is drawn elsewhere */
  constructor(onChange) {
    this.scaled = false;
    this.module = null; // null: all gradients
    this.subject = null;
    this.explorer = new Explorer();
    this.blocks = new Blocks((formats) => this.explorer.showBlocks(formats));
    this.modules = new Modules((name) => this.select(name === this.module ? null : name));
    byId("whatif-all").addEventListener("click", () => this.select(null));
    byId("scaled").addEventListener("change", (event) => {
      this.scaled = event.target.value === "yes";
      onChange();
    });
    this.onChange = onChange;
  }

  /** Show the ranges of a rank; returns what the heatmap has to show. */
  show(run, rank, subject, state, ranges) {
    if (subject !== this.subject) {
      this.module = null;
      this.explorer.reset();
    }
    this.subject = subject;
    this.blocks.want({ run, rank, subject, module: this.module });
    const columns = this.columns(subject, state.exponent_columns, ranges.columns);
    setText(byId("ranges-sentence"), ranges.sentence);
    byId("exponents-box").hidden = !columns.length;
    byId("scaled").hidden = !columns.some((column) => column.scale_high !== 1);
    this.showModules(state, ranges);
    this.showExplorer(state, ranges);
    return { columns, name: ranges.format, format: state.formats[ranges.format], known: ranges.format_known, scaled: this.scaled };
  }

  /** The columns of the heatmap; the same list as before unless there is a new one. */
  columns(subject, names, raw) {
    const newest = Object.values(raw).at(-1); // a changed column is another array
    if (this.seen?.subject !== subject || this.seen.newest !== newest) {
      this.seen = { subject, newest, columns: readColumns(names, raw) };
    }
    return this.seen.columns;
  }

  showModules(state, ranges) {
    const none = !Object.keys(ranges.modules).length;
    byId("modules").hidden = none;
    if (!none) this.modules.show(state.module_columns, ranges.modules, this.module, state.troubles);
  }

  showExplorer(state, ranges) {
    const cells = this.module === null ? null : ranges.modules[this.module];
    const own = cells ? named(state.module_columns, cells).histogram : null;
    const shown = own ?? ranges.gradients;
    byId("whatif").hidden = !shown;
    byId("whatif-all").hidden = !own;
    if (!shown) return;
    const histogram = readHistogram(state.histogram_columns, shown);
    const without = cells && !own ? `; ${label(this.module)} has none of its own` : "";
    this.explorer.show({
      cells: shown,
      name: own ? `gradient of ${label(this.module)}` : "all gradients",
      told: `step ${number(histogram.step)}${without}`,
      histogram,
      formats: state.formats,
      format: ranges.format,
      tolerated: ranges.tolerated,
      measuredAt: this.scaleAt(histogram.step, ranges),
      lossScale: ranges.loss_scale ?? null,
      noScale: ranges.no_scale,
    });
  }

  /** Exponent of the loss scale of a sample, at most; that of now where the heatmap has no column of it. */
  scaleAt(step, ranges) {
    const column = this.seen.columns.findLast(({ first }) => first <= step);
    const scale = value(column?.scale_low ?? ranges.loss_scale);
    return scale > 0 && scale < Infinity ? Math.round(Math.log2(scale)) : 0;
  }

  select(module) {
    this.module = module;
    this.onChange();
    if (module !== null) byId("whatif").scrollIntoView({ block: "nearest" });
  }

  /** Draw again, in the colours of another theme. */
  draw() {
    this.explorer.draw();
  }
}

function readHistogram(columns, cells) {
  const histogram = named(columns, cells);
  return { ...histogram, amax: value(histogram.amax), amin: value(histogram.amin) };
}
