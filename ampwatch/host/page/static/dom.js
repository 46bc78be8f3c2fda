// Elements and text. Data becomes text only, never markup.

const prints = new WeakMap(); // what the children of an element were made from

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

/** Replace the children only if what they are made from has changed; focus survives. */
export function rebuild(element, source, build) {
  const print = JSON.stringify(source);
  if (prints.get(element) === print) return;
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  prints.set(element, print);
  element.replaceChildren(...build());
  if (focused !== undefined) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
}
