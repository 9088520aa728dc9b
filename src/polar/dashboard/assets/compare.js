// Two sessions, or two builders of one, side by side: numbers, traces, breaks, and the tokens of two traces.
const WORDS = new Uint32Array(unpacked(VALUES.words));
const IDS = new Int32Array(unpacked(VALUES.vocabulary_ids));
const SIDES = [VALUES.left, VALUES.right];
const ROWS = [...VALUES.left.rows, ...VALUES.right.rows];
const FOLDED = 480; // tokens of an equal piece that are shown whole
const USES = ["given", "trained", "not trained", "", ""];
const shownRows = [0, 0];
let pieces = [];

function textOf(token) {
  return VALUES.vocabulary[WORDS[token]];
}

function rowOf(side, index) {
  return SIDES[side].rows[index];
}

// All tokens of a row, by their numbers on the page.
function tokensOfRow(row) {
  const size = row.prompt + row.response;
  const tokens = new Uint32Array(size);
  let needed = size;
  for (let from = row; from && needed > 0; from = from.base === null ? null : ROWS[from.base]) {
    for (let at = from.common; at < needed; at++) tokens[at] = from.start + at - from.common;
    needed = Math.min(needed, from.common);
  }
  return tokens;
}

function kindsOfRow(row) {
  const kinds = new Uint8Array(row.prompt + row.response);
  let at = 0;
  for (const [size, kind] of row.kinds) kinds.fill(kind, at, (at += size));
  return kinds;
}

// Equal pieces are cut where the two sides use the tokens differently.
function piecesOf(left, right) {
  const ids = (tokens) => Int32Array.from(tokens, (token) => IDS[WORDS[token]]);
  const found = [];
  for (const [from, to, fromRight, toRight, equal] of aligned(ids(left.tokens), ids(right.tokens))) {
    if (!equal) {
      found.push({ what: "differ", from: [from, fromRight], to: [to, toRight] });
      continue;
    }
    for (let at = from; at < to; ) {
      const pair = (each) => left.kinds[each] * 8 + right.kinds[each - from + fromRight];
      const start = at;
      const first = pair(at);
      const isSame = left.kinds[at] === right.kinds[at - from + fromRight];
      const goesOn = () => (isSame ? left.kinds[at] === right.kinds[at - from + fromRight] : pair(at) === first);
      while (at < to && goesOn()) at++;
      const shift = fromRight - from;
      found.push({ what: isSame ? "same" : "use", from: [start, start + shift], to: [at, at + shift], uses: [first >> 3, first & 7] });
    }
  }
  return found;
}

function sizeOf(piece, side) {
  return piece.to[side] - piece.from[side];
}

function pieceTitle(piece) {
  const [left, right] = [sizeOf(piece, 0), sizeOf(piece, 1)];
  if (piece.what === "same") return `equal: ${counted(left, "token")}`;
  if (piece.what === "use") return `equal tokens, another use: ${USES[piece.uses[0]]} on the left, ${USES[piece.uses[1]]} on the right: ${counted(left, "token")}`;
  if (!right) return `only on the left: ${counted(left, "token")}`;
  if (!left) return `only on the right: ${counted(right, "token")}`;
  return `different: ${left.toLocaleString("en")} | ${counted(right, "token")}`;
}

function pieceSection(piece, number, rows) {
  const place = el("span", { class: "quiet" }, ` from ${piece.from[0].toLocaleString("en")} | ${piece.from[1].toLocaleString("en")}`);
  const section = el("section", { class: "piece " + piece.what, id: "piece-" + number, tabindex: -1 }, el("h3", {}, pieceTitle(piece), place));
  if (piece.what !== "same" || sizeOf(piece, 0) <= FOLDED) {
    section.append(...pairsOf(piece, rows, 0, Infinity));
    return section;
  }
  const size = sizeOf(piece, 0);
  const more = el("button", { type: "button", class: "unfold" }, `show ${counted(size - 2 * BLOCK, "more equal token")}`);
  more.addEventListener("click", () => more.replaceWith(...pairsOf(piece, rows, BLOCK, size - BLOCK)));
  section.append(...pairsOf(piece, rows, 0, BLOCK), more, ...pairsOf(piece, rows, size - BLOCK, size));
  return section;
}

// The tokens of a piece from `from` to `to`, in pairs of blocks.
function pairsOf(piece, rows, from, to) {
  const end = Math.min(to, Math.max(sizeOf(piece, 0), sizeOf(piece, 1)));
  const pairs = [];
  for (let at = from; at < end; at += BLOCK) {
    const ranges = [0, 1].map((side) => {
      const last = Math.min(piece.to[side], piece.from[side] + Math.min(at + BLOCK, end));
      return [Math.min(piece.from[side] + at, last), last];
    });
    const width = document.getElementById("page").clientWidth / 2 - 30;
    const heights = ranges.map(([start, stop], side) => estimatedHeight(rows[side].tokens.subarray(start, stop), width));
    pairs.push(filledWhenNear(el("div", { class: "pair" }), () => pairContent(ranges, rows), Math.max(...heights)));
  }
  return pairs;
}

function pairContent(ranges, rows) {
  const content = document.createDocumentFragment();
  ranges.forEach(([start, stop], side) => {
    const cell = el("div", { class: "block flow " + ["left", "right"][side] });
    for (let at = start; at < stop; at++) {
      const span = document.createElement("span");
      span.className = "t " + KIND_CLASSES[rows[side].kinds[at]];
      span.place = [side, at];
      span.textContent = shownText(textOf(rows[side].tokens[at]));
      cell.append(span);
    }
    content.append(cell);
  });
  return content;
}

function inspectPlace(span) {
  const [side, at] = span.place;
  const row = rowOf(side, shownRows[side]);
  const token = tokensOfRow(row)[at];
  const call = row.spans.find(([, start, size]) => at >= start && at < start + size);
  const pairs = [
    ["side", ["left", "right"][side]],
    ["trace", String(shownRows[side])],
    ["position", String(at)],
    ["text", JSON.stringify(visible(textOf(token)))],
    ["id", String(IDS[WORDS[token]])],
    ["use", USES[kindsOfRow(row)[at]]],
    ["call", call ? String(call[0]) : "–"],
  ];
  const panel = document.getElementById("inspector");
  panel.replaceChildren(el("dl", {}, pairs.map(([name, value]) => el("div", { "data-name": name }, el("dt", {}, name), el("dd", {}, visible(value))))));
  panel.hidden = false;
}

// The two chosen traces beneath each other's pieces.
function drawTokens() {
  const box = document.getElementById("aligned");
  const rows = [0, 1].map((side) => rowOf(side, shownRows[side]));
  for (const side of [0, 1]) {
    for (const button of document.querySelectorAll(`.rows.side-${side} button`)) button.setAttribute("aria-pressed", Number(button.dataset.row) === shownRows[side]);
  }
  if (!rows[0] || !rows[1]) {
    box.replaceChildren(el("p", { class: "quiet" }, `There are no traces on the ${rows[0] ? "right" : "left"}.`));
    return;
  }
  const unfolded = rows.map((row) => ({ tokens: tokensOfRow(row), kinds: kindsOfRow(row) }));
  pieces = piecesOf(unfolded[0], unfolded[1]);
  box.replaceChildren(...pieces.map((piece, i) => pieceSection(piece, i, unfolded)));
  document.getElementById("outcome").textContent = outcomeText();
  for (const id of ["first", "previous", "next"]) document.getElementById(id).disabled = !places().length;
}

function outcomeText() {
  const at = pieces.findIndex((piece) => piece.what === "differ");
  const used = pieces.filter((piece) => piece.what === "use").length;
  const uses = used ? `; ${counted(used, "stretch").replace("stretchs", "stretches")} of equal tokens used differently` : "";
  if (at < 0) return "All tokens are equal" + uses + ".";
  const [left, right] = pieces[at].from;
  return `Equal up to token ${left.toLocaleString("en")}${left === right ? "" : " | " + right.toLocaleString("en")}; ${counted(pieces.filter((piece) => piece.what === "differ").length, "difference")}${uses}.`;
}

// Numbers of the pieces that are not the same.
function places() {
  return pieces.map((piece, i) => (piece.what === "same" ? -1 : i)).filter((i) => i >= 0);
}

function goPiece(number) {
  const section = document.getElementById("piece-" + number);
  if (!section) return;
  section.focus({ preventScroll: true });
  showAt(section);
  history.replaceState(null, "", `#traces-${shownRows[0]}-${shownRows[1]}-${number}`);
}

function goFirst() {
  const first = pieces.findIndex((piece) => piece.what === "differ");
  goPiece(first < 0 ? places()[0] : first);
}

function step(by) {
  const focused = document.activeElement.closest ? document.activeElement.closest(".piece") : null;
  const now = focused ? Number(focused.id.slice("piece-".length)) : -1;
  const all = places();
  const next = by > 0 ? all.find((i) => i > now) : all.filter((i) => i < now).at(-1);
  if (next !== undefined) goPiece(next);
}

function chooseRow(side, index) {
  shownRows[side] = index;
  if (side === 0) shownRows[1] = VALUES.partners[index] ?? 0;
  drawTokens();
  history.replaceState(null, "", `#traces-${shownRows[0]}-${shownRows[1]}`);
}

function followAddress() {
  const [, left, right, piece] = /^#traces-(\d+)-(\d+)(?:-(\d+))?$/.exec(location.hash) || [];
  if (left !== undefined) [shownRows[0], shownRows[1]] = [Number(left), Number(right)];
  drawTokens();
  if (piece !== undefined) goPiece(Number(piece));
}

const KEYS = {
  f: ["first different token", goFirst],
  n: ["next difference", () => step(1)],
  p: ["previous difference", () => step(-1)],
};
