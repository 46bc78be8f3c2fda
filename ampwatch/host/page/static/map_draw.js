// The cells of the map on a canvas. No state, no page.

const WIDEST = 22; // px of a column: a young run has few of them
const GAP_FROM = 5; // px of a column from which there is a gap between two

/** How a kind of trouble looks: its colour, and where in the cell it stands, so that colour is not all. */
const LOOKS = {
  nonfinite: { colour: "--critical", top: 0, height: 1 },
  nonfinite_gradient: { colour: "--critical", top: 0, height: 1, hollow: true },
  lost: { colour: "--map-lost", top: 0.5, height: 0.5 },
  activation_headroom: { colour: "--warning", top: 0, height: 0.5 },
  unchanged: { colour: "--accent", top: 0.34, height: 0.32 },
  follows: { colour: "--critical", top: 0, height: 1, faint: 0.3 },
  expected: { colour: "--critical", top: 0.8, height: 0.2, faint: 0.5 },
  // Formats of a plan: the wider, the fuller, and of four colours that also differ in lightness.
  bits4: { colour: "--bits4", top: 0.75, height: 0.25 },
  bits6: { colour: "--bits4", top: 0.62, height: 0.38 },
  bits8: { colour: "--bits8", top: 0.5, height: 0.5 },
  bits16: { colour: "--bits16", top: 0.25, height: 0.75 },
  bits19: { colour: "--bits32", top: 0.1, height: 0.9 },
  bits32: { colour: "--bits32", top: 0, height: 1 },
  // How exact: the fewer bits are right, the fuller.
  right10: { colour: "--accent", top: 0.8, height: 0.2 },
  right7: { colour: "--accent", top: 0.6, height: 0.4 },
  right4: { colour: "--warning", top: 0.4, height: 0.6 },
  right2: { colour: "--warning", top: 0.2, height: 0.8 },
  right0: { colour: "--critical", top: 0, height: 1 },
  as_is: { colour: "--bits32", top: 0, height: 1, hollow: true },
};

const BREAK = 5; // px of a gap where many steps were not measured
const HOLLOW = 4; // px of the edges, above and below, of what is hollow
const STRENGTHS = [0.55, 0.78, 1]; // of the grades of a kind

/** Width of a column in px, on a canvas of a width. */
export function columnWidth(width, columns, widest = WIDEST) {
  return Math.min(widest, width / Math.max(1, columns));
}

/**
 * Draw rows of cells onto a canvas.
 * @param {HTMLCanvasElement} canvas
 * @param {{cells: Uint8Array | null}[]} rows null where a row has no cells of its own
 * @param {{codes: {reason: string, grade: number}[], columns: number, width: number, widest?: number, rowHeight: number,
 *   shift: number, height: number, mark: number, breaks: number[], colour: (name: string) => string}} how `shift`
 *   is how far the first row is above the canvas; `mark` is the column before which a line is drawn, -1 for none;
 *   before each of `breaks` there is a gap
 */
export function drawCells(canvas, rows, { codes, columns, width, widest, rowHeight, shift, height, mark, breaks, colour }) {
  const ratio = window.devicePixelRatio || 1;
  const step = columnWidth(width, columns, widest);
  canvas.width = Math.round(step * columns * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${step * columns}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  const gap = step >= GAP_FROM ? 1 : 0;
  const fills = codes.map((code) => fillOf(code, colour));
  rows.forEach(({ cells }, i) => {
    const top = i * rowHeight - shift + 1;
    const room = rowHeight - 2;
    if (cells === null) {
      context.fillStyle = colour("--raised");
      context.fillRect(0, top - 1, width, rowHeight);
      return;
    }
    for (let c = 0; c < columns;) {
      // Neighbours that look alike are one stroke where there is no gap between them.
      let next = c + 1;
      while (!gap && next < columns && cells[next] === cells[c]) next += 1;
      drawCell(context, fills[cells[c]], c * step, top, (next - c) * step - gap, room);
      c = next;
    }
  });
  for (const column of breaks) context.clearRect(column * step - BREAK / 2 - gap / 2, 0, BREAK, height);
  if (mark >= 0) {
    context.fillStyle = colour("--critical");
    context.fillRect(Math.round(mark * step) - 1, 0, 1.5, height);
  }
}

function fillOf({ reason, grade }, colour) {
  if (reason === "none") return null;
  const look = LOOKS[reason];
  return { ground: colour("--map-quiet"), look, mark: look && colour(look.colour), strength: look?.faint ?? STRENGTHS[grade] };
}

function drawCell(context, fill, left, top, width, height) {
  if (fill === null) return;
  context.fillStyle = fill.ground;
  context.fillRect(left, top, width, height);
  if (!fill.look) return;
  context.globalAlpha = fill.strength;
  context.fillStyle = fill.mark;
  context.fillRect(left, top + fill.look.top * height, width, fill.look.height * height);
  if (fill.look.hollow) {
    context.globalAlpha = 1;
    context.fillStyle = fill.ground;
    context.fillRect(left, top + HOLLOW, width, height - 2 * HOLLOW);
  }
  context.globalAlpha = 1;
}
