// Shares as bars: of dtypes, and a share of which only bounds are known. Colour is never alone.

import { make } from "./dom.js";
import { percent } from "./words.js";

/** A bar of shares of dtypes; `mix` are pairs of dtype and share. What it says is its name to a reader. */
export function mixBar(mix, words = mixWords(mix)) {
  const bar = make("span", { class: "mix", role: "img", "aria-label": words, title: words });
  bar.append(...mix.map(([dtype, share]) => part(dtype, share)));
  return bar;
}

export function mixWords(mix) {
  return mix.map(([dtype, share]) => `${percent(share)} ${dtype}`).join(", ");
}

/** The key of a bar: each dtype with its pattern and its share. */
export function mixKey(mix) {
  return mix.map(([dtype, share]) => make("li", { "data-dtype": dtype },
    make("span", { class: "swatch", "aria-hidden": "true" }), `${dtype} `, make("b", {}, percent(share))));
}

/** A bar that is full up to `low`, and hatched from there to `high`. */
export function bandBar(low, high, words) {
  const bar = make("span", { class: "mix band", role: "img", "aria-label": words });
  bar.append(part("low", low), ...(high > low ? [part("maybe", high - low)] : []));
  return bar;
}

function part(name, share) {
  const element = make("span", { "data-dtype": name });
  element.style.setProperty("--share", String(share));
  return element;
}
