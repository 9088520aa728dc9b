// Walking through the page: the token under the pointer, keys, addresses such as #token-1234, and search.
let chosen = null;

function detailsOf(token, inContext) {
  const call = callOf(token);
  const index = sampledIndex(call, token);
  const logprob = logprobOf(call, token);
  const within = (part) => index >= part[0] && index < part[0] + part[1];
  const drop = index < 0 ? null : call.drops.find(within);
  const policy = index < 0 ? null : call.policy.find(within);
  const kind = inContext && index >= 0 ? KIND.ECHOED : KINDS[token];
  const position = index < 0 ? call.common + token - call.start : call.prompt_tokens + index;
  const range = index < 0 ? [call.start, call.start + call.prompt] : [call.start + call.prompt, call.end];
  return [
    ["token", String(token)],
    ["text", JSON.stringify(visible(textOf(token)))],
    ["id", String(IDS[WORDS[token]])],
    ["kind", KIND_NAMES[kind] + (drop ? ": " + drop[2] : "")],
    ["logprob", logprob === null ? "–" : Number.isNaN(logprob) ? "none" : `${logprob.toFixed(4)} (p ${Math.exp(logprob).toPrecision(3)})`],
    ["policy", (policy && policy[2]) || "–"],
    ["call", String(call.number)],
    ["position", position + " of its context"],
    ["range", `tokens ${range[0]}–${range[1] - 1}` + (index >= 0 && call.trace !== null ? `; response ${call.trace_start + index} of trace ${call.trace}` : "")],
    ["break", call.fork ? call.fork.reason : "–"],
  ];
}

function inspect(span) {
  const panel = document.getElementById("inspector");
  const pairs = detailsOf(span.token, span.closest(".context") !== null);
  panel.replaceChildren(el("dl", {}, pairs.map(([name, value]) => el("div", { "data-name": name }, el("dt", {}, name), el("dd", {}, visible(value))))));
  panel.hidden = false;
}

function choose(span, withAddress) {
  if (chosen) chosen.classList.remove("chosen");
  chosen = span;
  span.classList.add("chosen");
  span.tabIndex = -1;
  span.focus({ preventScroll: true });
  inspect(span);
  if (withAddress) history.replaceState(null, "", "#token-" + span.token);
}

function goToken(token) {
  const span = elementOf(token);
  if (!span) return false;
  choose(span, true);
  showAt(span, { block: "center" });
  return true;
}

function goCall(number) {
  const section = document.getElementById("call-" + number);
  if (!section) return false;
  markOnMap(number);
  fillNow(section);
  showAt(section);
  section.focus({ preventScroll: true });
  history.replaceState(null, "", "#call-" + number);
  return true;
}

function followAddress() {
  const [, what, number] = /^#(call|token)-(\d+)$/.exec(location.hash) || [];
  if (what === "call") goCall(Number(number));
  if (what === "token") goToken(Number(number));
}

// The element of a list, all beneath each other, at which the window stands now.
function current(elements) {
  const active = document.activeElement;
  const focused = elements.findIndex((each) => each === active || each.contains(active));
  if (focused >= 0) return focused;
  let low = -1;
  let high = elements.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (elements[middle].getBoundingClientRect().top <= 120) low = middle;
    else high = middle - 1;
  }
  return low;
}

function turnsOf(section) {
  if (!section) return [];
  fillNow(section);
  return [...section.querySelectorAll(".message")];
}

function stepTurn(by) {
  const sections = [...document.querySelectorAll(".call")];
  const at = Math.max(0, current(sections));
  const turns = turnsOf(sections[at]);
  const next = current(turns) + by;
  const beyond = next < 0 ? turnsOf(sections[at - 1]).at(-1) : turnsOf(sections[at + 1])[0];
  const turn = turns[next] || beyond;
  if (!turn) return;
  turn.focus({ preventScroll: true });
  showAt(turn, { block: "nearest" });
}

function stepCall(by) {
  const sections = [...document.querySelectorAll(".call")];
  const next = Math.min(sections.length - 1, Math.max(0, current(sections) + by));
  if (sections[next]) goCall(Number(sections[next].dataset.call));
}

function stepToken(by) {
  goToken(chosen ? Math.min(WORDS.length - 1, Math.max(0, chosen.token + by)) : 0);
}

const KEYS = {
  j: ["next turn", () => stepTurn(1)],
  k: ["previous turn", () => stepTurn(-1)],
  n: ["next call", () => stepCall(1)],
  p: ["previous call", () => stepCall(-1)],
  l: ["next token", () => stepToken(1)],
  h: ["previous token", () => stepToken(-1)],
  "/": ["search", () => document.getElementById("search").focus()],
  "?": ["this help", () => document.getElementById("help").showModal()],
};

function helpDialog() {
  const rows = Object.entries(KEYS).map(([key, [what]]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)));
  const dialog = el("dialog", { id: "help" }, el("h2", {}, "Keys"), el("dl", {}, rows), el("p", {}, "Addresses: #call-3, #token-1234. Search: Enter for the next place, Shift+Enter for the one before."));
  const close = el("button", { type: "button" }, "close");
  close.addEventListener("click", () => dialog.close());
  dialog.append(close);
  return dialog;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, dialog[open]")) return;
  const known = KEYS[event.key];
  if (!known) return;
  event.preventDefault();
  known[1]();
}

// Search goes over the tokens of each call, and over its messages where it has none.
let haystacks = null;
let found = { text: "", places: [], at: -1 };

function haystackOf(call) {
  const texts = [];
  const starts = [];
  let size = 0;
  for (let token = call.start; token < call.end; token++) {
    const text = textOf(token).toLowerCase();
    starts.push(size);
    texts.push(text);
    size += text.length;
  }
  const messages = [...call.messages, call.reply].map((each) => each.content + each.reasoning + (each.tool_calls || []).join(" "));
  return { call, starts, text: size ? texts.join("") : messages.join("\n").toLowerCase() };
}

function placesOf({ call, starts, text }, wanted) {
  const places = [];
  for (let at = text.indexOf(wanted); at >= 0; at = text.indexOf(wanted, at + wanted.length)) {
    if (!starts.length) return [() => goCall(call.number)];
    let low = 0;
    let high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= at) low = middle;
      else high = middle - 1;
    }
    places.push(() => goToken(call.start + low));
  }
  return places;
}

function search(text, by) {
  const wanted = text.toLowerCase();
  if (!wanted) return "";
  haystacks = haystacks || CALLS.map(haystackOf);
  if (found.text !== wanted) found = { text: wanted, places: haystacks.flatMap((each) => placesOf(each, wanted)), at: by > 0 ? -1 : 0 };
  if (!found.places.length) return "not found";
  found.at = (found.at + by + found.places.length) % found.places.length;
  found.places[found.at]();
  return `${found.at + 1} of ${found.places.length}`;
}

function searchBox() {
  const input = el("input", { id: "search", type: "search", placeholder: "search this session", "aria-label": "search this session" });
  const outcome = el("output", { id: "found" });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") input.blur();
    if (event.key !== "Enter") return;
    outcome.textContent = search(input.value, event.shiftKey ? -1 : 1);
    input.focus({ preventScroll: true });
  });
  return el("label", { class: "search" }, input, outcome);
}
