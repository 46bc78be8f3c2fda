// The tree of modules behind the map, and which of it is folded. No state, no page.

const MAX_ROWS = 40; // rows that the map has before anybody unfolds something
const MAX_SIBLINGS = 24; // rows beside one another; of more, neighbours are put together

/**
 * Make the tree of the modules of a map. A node is { key, label, parent, nodes, module, size, cells }: `module` is
 * the number of the module in the map, -1 where the node only holds others; `cells` has the places of the
 * codes of the worst of the node and all that is in it, and `size` is how many modules these are.
 * @param {{modules: string[], columns: unknown[], rows: string[]}} map
 * @param {Map<string, number>} places the place of each letter among the codes, the worst last
 */
export function treeOf(map, places) {
  const root = { key: "", label: "", parent: null, nodes: [], module: -1, byKey: new Map() };
  map.modules.forEach((name, module) => {
    let node = root;
    for (const part of name === "" ? [] : name.split(".")) node = child(node, part);
    node.module = module;
  });
  shorten(root);
  gather(root);
  fill(root, map, places);
  return root;
}

function child(node, part) {
  const key = node.key === "" ? part : `${node.key}.${part}`;
  let found = node.byKey.get(part);
  if (found === undefined) {
    found = { key, label: part, parent: node, nodes: [], module: -1, byKey: new Map() };
    node.byKey.set(part, found);
    node.nodes.push(found);
  }
  return found;
}

function fill(node, map, places) {
  const own = new Uint8Array(map.columns.length);
  if (node.module >= 0) for (let i = 0; i < own.length; i += 1) own[i] = places.get(map.rows[node.module][i]) ?? 0;
  node.own = own;
  node.cells = own;
  node.size = node.module >= 0 ? 1 : 0;
  for (const inner of node.nodes) {
    fill(inner, map, places);
    node.size += inner.size;
  }
  if (node.nodes.length) {
    node.cells = own.slice();
    for (const inner of node.nodes) inner.cells.forEach((place, i) => { if (place > node.cells[i]) node.cells[i] = place; });
  }
  node.worst = Math.max(0, ...node.cells);
}

/** A node that only holds one other is no row of its own: their labels become one. */
function shorten(node) {
  node.nodes = node.nodes.map((inner) => {
    let found = inner;
    while (found.module < 0 && found.nodes.length === 1) {
      const [only] = found.nodes;
      only.label = `${found.label}.${only.label}`;
      only.parent = node;
      found = only;
    }
    shorten(found);
    return found;
  });
}

/** Put many siblings into groups of neighbours, about as many groups as there are siblings in one. */
function gather(node) {
  node.nodes.forEach(gather);
  const { nodes } = node;
  if (nodes.length <= MAX_SIBLINGS) return;
  const size = Math.ceil(Math.sqrt(nodes.length));
  node.nodes = Array.from({ length: Math.ceil(nodes.length / size) }, (_, i) => {
    const members = nodes.slice(i * size, (i + 1) * size);
    const words = members.length > 1 ? `${members[0].label} … ${members.at(-1).label}` : members[0].label;
    const group = { key: `${members[0].key} …`, label: words, parent: node, nodes: members, module: -1, isGroup: true };
    for (const member of members) member.parent = group;
    return group;
  });
}

/** The rows of a tree in order, each { node, depth }, given the keys of what is unfolded. */
export function rowsOf(root, unfolded) {
  const rows = [];
  const add = (node, depth) => {
    rows.push({ node, depth });
    if (unfolded.has(node.key)) for (const inner of node.nodes) add(inner, depth + 1);
  };
  if (root.module >= 0) rows.push({ node: { ...root, nodes: [], cells: root.own, size: 1, worst: Math.max(0, ...root.own) }, depth: 0 });
  for (const node of root.nodes) add(node, 0);
  return rows;
}

/**
 * What is unfolded before anybody has chosen: the way to the culprit, and then, as long as there is room, what
 * is nearest to the root. Of equally near ones those in the worst trouble come first.
 * @param {string | undefined} culprit name of a module
 */
export function firstUnfolded(root, culprit) {
  const unfolded = new Set();
  let rows = root.nodes.length + (root.module >= 0 ? 1 : 0);
  const open = (node) => {
    unfolded.add(node.key);
    rows += node.nodes.length;
  };
  for (const node of wayTo(root, culprit)) if (node.nodes.length) open(node);
  let level = root.nodes;
  while (level.length) {
    const closed = level.filter((node) => node.nodes.length && !unfolded.has(node.key));
    for (const node of closed.toSorted((a, b) => b.worst - a.worst)) {
      if (rows + node.nodes.length <= MAX_ROWS) open(node);
    }
    level = level.flatMap((node) => (unfolded.has(node.key) ? node.nodes : []));
  }
  return unfolded;
}

/** The nodes that a module is in, from the outside, without itself. */
export function wayTo(root, name) {
  const within = (node) => name === node.key || name.startsWith(`${node.key}.`);
  const way = [];
  if (name === undefined) return way;
  for (let node = root; ;) {
    const next = node.nodes.find((inner) => (inner.isGroup ? inner.nodes.some(within) : within(inner)));
    if (next === undefined || next.key === name) return way;
    way.push(next);
    node = next;
  }
}

/** What a node is called in its row: of what is folded, what it holds. */
export function rowName(node, isFolded) {
  if (!isFolded) return node.label || "(root module)";
  const leaves = node.nodes.flatMap((inner) => (inner.isGroup ? inner.nodes : [inner]));
  const numbered = !node.isGroup && leaves.length > 1 && leaves.every(({ label }) => /^\d+$/.test(label));
  return numbered ? `${node.label}.${leaves[0].label} … ${leaves.at(-1).label}` : node.label;
}
