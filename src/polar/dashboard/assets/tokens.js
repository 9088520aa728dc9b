// The tokens of a session: unpacked once, drawn in blocks when they come near the window.
const SURPRISE = [0.05, 0.2, 0.7, 1.5, 3, 6]; // of -logprob: the bounds of the seven tints

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
  const sampled = KINDS[token] !== KIND.GIVEN;
  const kind = inContext && sampled ? KIND.ECHOED : KINDS[token];
  const span = document.createElement("span");
  span.className = "t " + KIND_CLASSES[kind] + (inContext || !sampled ? "" : tint(logprobOf(callOf(token), token)));
  span.token = token;
  span.textContent = shownText(textOf(token));
  return span;
}

// Tokens as blocks that are drawn when they come near; `tokens` are numbers on the page.
function tokenFlow(tokens, inContext) {
  const flow = el("div", { class: "flow" });
  const borders = bordersOf(tokens);
  for (let i = 0; i + 1 < borders.length; i++) {
    const block = el("div", { class: "block" });
    block.tokens = tokens.subarray(borders[i], borders[i + 1]);
    filledWhenNear(block, () => drawnTokens(block.tokens, inContext), estimatedHeight(block.tokens));
    flow.append(block);
  }
  return flow;
}

function drawnTokens(tokens, inContext) {
  const spans = document.createDocumentFragment();
  for (const token of tokens) spans.append(drawnToken(token, inContext));
  return spans;
}

function tokenRange(start, size) {
  return Uint32Array.from({ length: size }, (_, i) => start + i);
}

// The element of a token, drawn if it was not.
function elementOf(token) {
  if (!(token >= 0 && token < WORDS.length)) return null;
  const section = document.getElementById("call-" + callOf(token).number);
  fillNow(section);
  for (const block of section.querySelectorAll(".tokens > .flow > .block")) {
    const at = token - block.tokens[0];
    if (at < 0 || at >= block.tokens.length) continue;
    fillNow(block);
    return block.children[at];
  }
  return null;
}
