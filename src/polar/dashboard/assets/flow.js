// What pages with tokens share: kinds, unpacking, and blocks of tokens. `textOf` gives the text of a token.
const KIND = { GIVEN: 0, TRAINED: 1, DROPPED: 2, UNPLACED: 3, ECHOED: 4 };
const KIND_NAMES = ["given", "sampled, trained", "sampled, dropped", "sampled, in no trace", "echoed"];
const KIND_CLASSES = ["given", "trained", "dropped", "unplaced", "echoed"];
const BLOCK = 160;
const LONGEST_BLOCK = 240;

function unpacked(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

function shownText(text) {
  return text === "" ? "\u00b7" : visible(text).replace(/\n/g, "\u23ce\n");
}

// Blocks end after a line if one ends nearby, so that their borders do not show.
function bordersOf(tokens) {
  const borders = [0];
  for (let at = 0; at < tokens.length; at++) {
    const size = at + 1 - borders[borders.length - 1];
    if ((size >= BLOCK && textOf(tokens[at]).endsWith("\n")) || size >= LONGEST_BLOCK) borders.push(at + 1);
  }
  if (borders[borders.length - 1] !== tokens.length) borders.push(tokens.length);
  return borders;
}

// In pixels, before the tokens are drawn. `width` is that of their column.
function estimatedHeight(tokens, width) {
  const columns = Math.max(30, Math.floor((width || Math.min(window.innerWidth, 1100)) / 9));
  let lines = 1;
  let column = 0;
  for (const token of tokens) {
    const text = textOf(token);
    column += text.length;
    if (text.includes("\n") || column > columns) {
      lines += Math.max(1, Math.floor(column / columns));
      column = 0;
    }
  }
  return lines * 25;
}
