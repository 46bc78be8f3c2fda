// Elements and text. Data becomes text only, never markup.

const prints = new WeakMap(); // what the children of an element were made from
const FOCUSABLE = "a, button, input, select, summary";

export const byId = (id) => document.getElementById(id);

/** Make an element; `children` are elements or text. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, content] of Object.entries(attributes)) element.setAttribute(name, content);
  element.append(...children);
  return element;
}

/** Put text into an element only if it differs, so that a selection or a reader is not disturbed. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Set an attribute only if it differs. */
export function setAttribute(element, name, text) {
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** Replace the children only if what they are made from has changed; focus survives. */
export function rebuild(element, source, build) {
  const print = JSON.stringify(source);
  if (prints.get(element) === print) return;
  const focused = focusIn(element);
  prints.set(element, print);
  element.replaceChildren(...build());
  if (focused) focusAgain(element, focused);
}

/** Where the focus is inside an element: under which key, and at which of the things there that can have it. */
function focusIn(element) {
  const at = document.activeElement;
  const keyed = element.contains(at) ? at.closest("[data-key]") : null;
  if (!keyed || keyed === element || !element.contains(keyed)) return null;
  return { key: keyed.dataset.key, place: [...keyed.querySelectorAll(FOCUSABLE)].indexOf(at) };
}

function focusAgain(element, { key, place }) {
  const keyed = element.querySelector(`[data-key="${CSS.escape(key)}"]`);
  (keyed?.querySelectorAll(FOCUSABLE)[place] ?? keyed)?.focus({ preventScroll: true });
}
