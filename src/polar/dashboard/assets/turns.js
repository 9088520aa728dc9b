// One section for each call: its messages, its tokens, why it left another call, and what was captured.
const LONG_TEXT = 6000;

function callSection(call) {
  const section = el("section", { class: "call", id: "call-" + call.number, tabindex: -1, "data-call": call.number });
  section.addEventListener("toggle", () => (section.kept = true), true);
  return filledWhenNear(section, () => callContent(call), sectionHeight(call));
}

function callContent(call) {
  const content = document.createDocumentFragment();
  content.append(callHead(call));
  if (call.fork) content.append(forkBox(call));
  content.append(el("div", { class: "conversation" }, call.messages.map((each) => message(each, call)), message(call.reply, call, "reply")));
  content.append(tokensOf(call), captured(call));
  return content;
}

// In pixels, before it is drawn.
function sectionHeight(call) {
  const tokens = (start, size) => (size ? 30 + estimatedHeight(tokenRange(start, size)) : 0);
  const text = (each) => (each.echo === "same" ? 30 : 40 + Math.min(416, 20 * Math.ceil((each.content + each.reasoning).length / 110)));
  const messages = [...call.messages, call.reply].reduce((sum, each) => sum + 12 + text(each), 0);
  return 130 + (call.fork ? 120 : 0) + messages + tokens(call.start, call.prompt) + tokens(call.start + call.prompt, call.sampled);
}

function callLink(number) {
  return el("a", { href: "#call-" + number }, "call " + number);
}

function callHead(call) {
  const how = call.parent === null ? "starts" : call.continues ? "continues " : "after ";
  const versions = [...new Set(call.policy.map((part) => part[2]))].filter(Boolean);
  const facts = [
    call.kind,
    counted(call.prompt_tokens, "prompt token"),
    call.sampled + " sampled",
    call.finish_reason,
    seconds(call.times[2] - call.times[0]),
    versions.length ? "policy " + versions.join(", ") : null,
    call.trace === null ? "in no trace" : "trace " + call.trace,
    ...call.notes,
  ];
  return el(
    "header",
    {},
    el("h2", {}, el("a", { href: "#call-" + call.number, title: visible(call.call_id) }, "Call " + call.number)),
    el("p", { class: "facts" }, el("span", {}, how, call.parent === null ? null : callLink(call.parent)), facts.filter(Boolean).map((fact) => el("span", {}, visible(fact)))),
  );
}

function forkBox(call) {
  const fork = call.fork;
  const other = fork.other === null ? "the other side" : callLink(fork.other);
  const common = fork.last_common === null ? "no whole call" : callLink(fork.last_common);
  return el(
    "div",
    { class: "fork" },
    el("p", {}, el("b", {}, "break: " + visible(fork.reason)), ` after ${counted(fork.position, "common token")}; last common call: `, common),
    el("dl", {}, el("dt", {}, other), el("dd", {}, sideText(fork.other_text)), el("dt", {}, "this call"), el("dd", {}, sideText(fork.own_text))),
  );
}

function sideText(text) {
  return text === "" ? "(ends here)" : visible(text).replace(/\n/g, "⏎\n");
}

function message(each, call, how) {
  const role = how === "reply" ? "assistant" : each.role;
  const echo = { same: `echo of the reply of call ${call.parent}, unchanged`, changed: `echo of the reply of call ${call.parent}, changed by the harness` }[each.echo];
  const head = el("p", { class: "role" }, el("b", {}, visible(role)), how === "reply" ? " sampled in call " + call.number : "", echo ? " " + echo : "", each.is_error ? " marked as an error" : "");
  const parts = [];
  if (each.reasoning) parts.push(el("details", { class: "reasoning", open: each.reasoning.length < 600 }, el("summary", {}, "reasoning"), longText(each.reasoning)));
  if (each.content) parts.push(longText(each.content));
  for (const [name, body] of each.tool_calls || []) parts.push(el("div", { class: "tool" }, el("b", {}, "calls " + visible(name)), longText(body)));
  for (const image of each.images || []) parts.push(el("p", { class: "quiet" }, "image: " + visible(image)));
  if (!parts.length) parts.push(el("p", { class: "quiet" }, "(empty)"));
  const body = each.echo === "same" ? el("details", {}, el("summary", {}, "show"), parts) : parts;
  return el("article", { class: "message " + (how || "request") + " role-" + role, tabindex: -1 }, head, body);
}

function longText(text) {
  const shown = el("pre", {}, visible(text.slice(0, LONG_TEXT)));
  if (text.length <= LONG_TEXT) return shown;
  const more = el("button", { type: "button" }, `show all ${text.length.toLocaleString("en")} characters`);
  more.addEventListener("click", () => {
    shown.textContent = visible(text);
    more.remove();
  });
  return el("div", {}, shown, more);
}

function tokensOf(call) {
  const box = el("div", { class: "tokens" });
  if (call.common) box.append(contextFold(call));
  if (call.prompt) box.append(el("h3", {}, `prompt adds ${counted(call.prompt, "token")}`), tokenFlow(tokenRange(call.start, call.prompt), false));
  if (call.sampled) box.append(el("h3", {}, `sampled ${counted(call.sampled, "token")}`), tokenFlow(tokenRange(call.start + call.prompt, call.sampled), false));
  if (!call.prompt && !call.sampled && !call.common) box.append(el("p", { class: "quiet" }, "The endpoint gave no token ids."));
  return box;
}

// What the prompt begins with, drawn when somebody opens it: every call before has these tokens on the page.
function contextFold(call) {
  const fold = el("details", { class: "context" }, el("summary", {}, `prompt begins with ${counted(call.common, "token")} of call ${call.base}`));
  fold.addEventListener("toggle", () => {
    if (fold.open && fold.children.length === 1) fold.append(tokenFlow(contextOf(call), true));
  });
  return fold;
}

function captured(call) {
  const fold = el("details", { class: "raw" }, el("summary", {}, "request and reply as captured"));
  fold.addEventListener("toggle", () => {
    if (!fold.open || fold.children.length > 1) return;
    const request = { ...call.raw.request, new_messages: call.messages };
    const reply = { message: call.reply, ...call.raw.reply };
    fold.append(el("div", { class: "both" }, rawPart("request", request), rawPart("reply", reply)));
  });
  return fold;
}

function rawPart(name, value) {
  return el("div", {}, el("h3", {}, name), longText(JSON.stringify(value, null, 2)));
}
