// Links to single findings: each row has one, and the row that an address asks for is found and marked.

import { byId, make, setAttribute, setText } from "./dom.js";

const TOLD_MS = 2000; // how long it is said that a link was copied

export class Links {
  /** @param {(key: string) => void} onLink called with the finding whose link was taken */
  constructor(onLink) {
    this.table = byId("findings");
    this.wanted = null; // the finding that is still to be gone to
    this.table.addEventListener("click", (event) => {
      const link = event.target.closest("a.permalink");
      if (!link) return;
      event.preventDefault();
      onLink(link.dataset.finding);
      copy(link);
    });
    // Whoever has begun to read is not taken elsewhere by a finding that comes late.
    for (const name of ["pointerdown", "keydown", "wheel"]) window.addEventListener(name, () => this.goTo(null), { passive: true });
  }

  /** Go to this finding once its row is there; null for none. */
  goTo(key) {
    this.wanted = key;
  }

  /** Give every link its address, and mark the row of `marked`. `addressOf` writes the address of a finding. */
  show(marked, addressOf) {
    for (const link of this.table.querySelectorAll("a.permalink")) setAttribute(link, "href", addressOf(link.dataset.finding));
    for (const row of this.table.querySelectorAll("[data-key]")) {
      const isMarked = row.dataset.key === marked;
      if (isMarked) row.setAttribute("aria-current", "true");
      else row.removeAttribute("aria-current");
      if (isMarked && this.wanted === marked) {
        this.wanted = null;
        arrive(row);
      }
    }
  }
}

/** The link of the row of a finding; where it leads to is filled in when the row is shown. */
export function permalink(key) {
  return make("a", { class: "permalink", href: "#", "data-finding": key, "aria-label": `link to ${key}` }, "link");
}

/** Unfold a row, bring it into sight, and hand the keyboard and the reader to it. */
function arrive(row) {
  for (let box = row.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
  row.scrollIntoView({ block: "start" });
  row.focus({ preventScroll: true });
}

/** Copy the address of a link where the browser allows it: over plain HTTP from another machine it does not. */
async function copy(link) {
  const { origin, pathname } = location; // without the query: what is asked for there is this browser's alone
  try {
    await navigator.clipboard.writeText(origin + pathname + link.getAttribute("href"));
  } catch {
    return; // it stands in the location bar
  }
  link.textContent = "copied";
  setText(byId("announcement"), "The link was copied.");
  setTimeout(() => { link.textContent = "link"; }, TOLD_MS);
}
