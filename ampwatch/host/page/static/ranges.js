// What is known of the ranges of one rank: heatmap, what-if panel and table, and what connects them.

import { byId, setText } from "./dom.js";
import { Explorer } from "./explorer.js";
import { Modules } from "./modules.js";
import { byStep, named } from "./state.js";

export class Ranges {
  /** @param {() => void} onChange called when the user has chosen something that is drawn elsewhere */
  constructor(onChange) {
    this.scaled = false;
    this.module = null; // null: all gradients
    this.subject = null;
    this.explorer = new Explorer();
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
    const columns = this.columns(subject, state.exponent_columns, ranges.columns);
    setText(byId("ranges-sentence"), ranges.sentence);
    byId("exponents-box").hidden = !columns.length;
    byId("scaled").hidden = !columns.some((column) => column.scale_high !== 1);
    this.showModules(state, ranges);
    this.showExplorer(run, rank, state, ranges);
    return { columns, name: ranges.format, format: state.formats[ranges.format], known: ranges.format_known, scaled: this.scaled };
  }

  /** The columns of the heatmap; the same list as before unless there is a new one. */
  columns(subject, names, raw) {
    const newest = Object.values(raw).at(-1); // a changed column is another array
    if (this.seen?.subject !== subject || this.seen.newest !== newest) {
      this.seen = { subject, newest, columns: byStep(names, raw) };
    }
    return this.seen.columns;
  }

  showModules(state, ranges) {
    const none = !Object.keys(ranges.modules).length;
    byId("modules").hidden = none;
    if (!none) this.modules.show(state.module_columns, ranges.modules, this.module, state.troubles);
  }

  showExplorer(run, rank, state, ranges) {
    const cells = this.module === null ? null : ranges.modules[this.module];
    const { step = null, gradient_amax: own = null } = cells ? named(state.module_columns, cells) : {};
    const isKnown = ranges.sampled !== undefined || own !== null;
    byId("whatif").hidden = !isKnown;
    if (!isKnown) return;
    const news = [ranges.sampled, step, ranges.format, ranges.loss_scale, ranges.no_scale].join();
    this.explorer.show({ run, rank, module: this.module, news, noScale: ranges.no_scale });
  }

  select(module) {
    this.module = module;
    this.onChange();
    if (module === null) return;
    byId("whatif").querySelector(".fold").open = true;
    byId("whatif").scrollIntoView({ block: "nearest" });
  }

  /** Draw again, in the colours of another theme. */
  draw() {
    this.explorer.draw();
  }
}
