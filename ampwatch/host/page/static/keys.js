// Lists of options that the keyboard walks through: one stop of Tab, arrow keys inside.

/** The options of a list that can be seen. */
function options(list) {
  return [...list.querySelectorAll("[role=option]:not([hidden])")];
}

/** Let arrow keys, Home and End move the focus among the options of `list`, as they stand on the screen. */
export function walk(list) {
  list.addEventListener("keydown", (event) => {
    const all = options(list);
    const at = all.indexOf(document.activeElement);
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const to = {
      ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1],
      ArrowDown: () => inNextRow(all.slice(at), 1), ArrowUp: () => inNextRow(all.slice(0, at + 1).reverse(), -1),
      Home: () => all[0], End: () => all.at(-1),
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    to.focus();
  });
  list.addEventListener("focusin", (event) => {
    if (event.target.matches("[role=option]")) stopAt(list, event.target);
  });
}

/** The option nearest to the first one, in the row after (1) or before (-1) it. */
function inNextRow([from, ...rest], way) {
  const { offsetTop: top, offsetLeft: left } = from;
  const row = rest.find((one) => way * (one.offsetTop - top) > 0)?.offsetTop;
  const away = (one) => Math.abs(one.offsetLeft - left);
  return rest.filter((one) => one.offsetTop === row).reduce((a, b) => (a && away(a) <= away(b) ? a : b), undefined);
}

/** Let Tab reach `option` of `list`, or else the first one. */
export function stopAt(list, option) {
  const stop = option && !option.hidden ? option : options(list)[0];
  if (list.stop === stop) return;
  list.stop?.setAttribute("tabindex", "-1");
  stop?.setAttribute("tabindex", "0");
  list.stop = stop;
}

/** Scroll `list`, and nothing around it, to where `option` can be seen; not under the hand of who scrolls it. */
export function bring(list, option) {
  if (option.hidden) return;
  const [outer, inner] = [list.getBoundingClientRect(), option.getBoundingClientRect()];
  if (list.matches(":hover") || (inner.top >= outer.top && inner.bottom <= outer.bottom)) return;
  list.scrollTop += inner.top - outer.top - (outer.height - inner.height) / 2;
}
