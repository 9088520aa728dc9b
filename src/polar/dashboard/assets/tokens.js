// The tokens: unpacked once, drawn in blocks when they come near the window.
const KIND = { GIVEN: 0, TRAINED: 1, DROPPED: 2, UNPLACED: 3, ECHOED: 4 };
const KIND_NAMES = ["given", "sampled, trained", "sampled, dropped", "sampled, in no trace", "echoed"];
const KIND_CLASSES = ["given", "trained", "dropped", "unplaced", "echoed"];
const SURPRISE = [0.05, 0.2, 0.7, 1.5, 3, 6]; // of -logprob: the bounds of the seven tints
const BLOCK = 160;
const LONGEST_BLOCK = 240;
const FRAME_MS = 5; // spent on drawing within one frame

function unpacked(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

const PACKED = VALUES.tokens;
const CALLS = VALUES.calls;
const WORDS = new Uint32Array(unpacked(PACKED.words));
const KINDS = new Uint8Array(unpacked(PACKED.kinds));
const IDS = new Int32Array(unpacked(PACKED.vocabulary_ids));
const LOGPROBS = new Float32Array(unpacked(PACKED.logprobs));
let before = 0;
for (const call of CALLS) {
  call.logprobStart = before;
  call.end = call.start + call.prompt + call.sampled;
  before += call.sampled;
}

function textOf(token) {
  return PACKED.vocabulary[WORDS[token]];
}

function callOf(token) {
  let low = 0;
  let high = CALLS.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (CALLS[middle].start <= token) low = middle;
    else high = middle - 1;
  }
  return CALLS[low];
}

// Where a token stands among the sampled ones of its call; negative: in the prompt.
function sampledIndex(call, token) {
  return token - call.start - call.prompt;
}

function logprobOf(call, token) {
  const index = sampledIndex(call, token);
  return index < 0 ? null : LOGPROBS[call.logprobStart + index];
}

// The tokens with which the prompt of a call begins, by their numbers on the page.
function contextOf(call) {
  const context = new Uint32Array(call.common);
  let needed = call.common;
  for (let base = call.base; base !== null && needed > 0; ) {
    const from = CALLS[base - 1];
    for (let at = from.common; at < needed; at++) context[at] = from.start + at - from.common;
    needed = Math.min(needed, from.common);
    base = from.base;
  }
  return context;
}

function tint(logprob) {
  if (logprob === null) return "";
  if (Number.isNaN(logprob)) return " unknown";
  const level = SURPRISE.findIndex((bound) => -logprob < bound);
  return " p" + (level < 0 ? SURPRISE.length : level);
}

function drawnToken(token, inContext) {
  const call = callOf(token);
  const sampled = KINDS[token] !== KIND.GIVEN;
  const kind = inContext && sampled ? KIND.ECHOED : KINDS[token];
  const text = textOf(token);
  const span = document.createElement("span");
  span.className = "t " + KIND_CLASSES[kind] + (inContext ? "" : tint(logprobOf(call, token)));
  span.dataset.token = token;
  span.dataset.kind = kind;
  span.tabIndex = -1;
  span.textContent = text === "" ? "\u00b7" : visible(text).replace(/\n/g, "\u23ce\n");
  return span;
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

const BLOCKS = []; // those of own tokens, by their first token
const WAITING = new Set();
const NEAR = new IntersectionObserver(noticed, { rootMargin: "900px 0px" });
let drawing = false;

function noticed(entries) {
  for (const entry of entries) {
    const block = entry.target;
    if (entry.isIntersecting) WAITING.add(block);
    else {
      WAITING.delete(block);
      emptied(block, entry.boundingClientRect.height);
    }
  }
  drawSoon();
}

function drawSoon() {
  if (drawing || !WAITING.size) return;
  drawing = true;
  requestAnimationFrame(() => {
    const started = performance.now();
    for (const block of WAITING) {
      WAITING.delete(block);
      drawBlock(block);
      if (performance.now() - started > FRAME_MS) break;
    }
    drawing = false;
    drawSoon();
  });
}

function drawBlock(block) {
  if (block.drawn) return;
  block.drawn = true;
  const spans = document.createDocumentFragment();
  for (const token of block.tokens) spans.append(drawnToken(token, block.inContext));
  block.style.minHeight = "";
  block.replaceChildren(spans);
}

function emptied(block, height) {
  if (!block.drawn || block.contains(document.activeElement)) return;
  block.drawn = false;
  block.style.minHeight = (height || estimatedHeight(block.tokens)) + "px"; // a section that is skipped has none
  block.replaceChildren();
}

function estimatedHeight(tokens) {
  const columns = Math.max(30, Math.floor(Math.min(window.innerWidth, 1100) / 9));
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

// Tokens as blocks that are drawn when they come near; `tokens` are numbers on the page.
function tokenFlow(tokens, inContext) {
  const flow = el("div", { class: "flow" });
  const borders = bordersOf(tokens);
  for (let i = 0; i + 1 < borders.length; i++) {
    const block = el("div", { class: "block" });
    block.tokens = tokens.subarray(borders[i], borders[i + 1]);
    block.inContext = inContext;
    block.style.minHeight = estimatedHeight(block.tokens) + "px";
    if (!inContext) BLOCKS.push(block);
    NEAR.observe(block);
    flow.append(block);
  }
  return flow;
}

function tokenRange(start, size) {
  return Uint32Array.from({ length: size }, (_, i) => start + i);
}

// The element of a token, drawn if it was not.
function elementOf(token) {
  let low = 0;
  let high = BLOCKS.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (BLOCKS[middle].tokens[0] <= token) low = middle;
    else high = middle - 1;
  }
  const block = BLOCKS[low];
  if (!block || !block.tokens.includes(token)) return null;
  drawBlock(block);
  return block.querySelector('[data-token="' + token + '"]');
}
