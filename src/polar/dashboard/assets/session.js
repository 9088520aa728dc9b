// Puts the page of one session together.
const LIGHTS = { exact: ["●", "exact"], inexact: ["◐", "not exact"], wrong: ["✕", "disagree"], none: ["○", "nothing to prove"] };

function light() {
  const proof = VALUES.proof;
  const [sign, word] = LIGHTS[proof.light];
  const findings = proof.findings.length ? el("details", { open: true }, el("summary", {}, "findings"), el("ul", {}, proof.findings.map((each) => el("li", {}, visible(each))))) : null;
  return el("div", { class: "light " + proof.light, id: "light", "data-light": proof.light }, el("p", {}, el("b", {}, sign + " " + word), " " + visible(proof.summary)), findings);
}

function scoreLines(score, name) {
  const metrics = Object.entries(score.metrics || {}).map(([key, value]) => ` ${key} ${value}`).join(" ·");
  const items = (score.reasons || []).map((reason) => el("li", {}, visible(reason)));
  const parts = Object.entries(score.parts || {}).map(([part, inner]) => el("li", {}, scoreLines(inner, part)));
  return el("div", { class: "score" }, el("p", {}, el("b", {}, visible(name) + " " + shownNumber(score.reward)), visible(metrics)), items.length + parts.length ? el("ul", {}, items, parts) : null);
}

function unfinished() {
  const reload = el("button", { type: "button", id: "reload" }, "load again");
  reload.addEventListener("click", () => location.reload());
  return el("p", { class: "quiet" }, `The session has no result yet: it is ${visible(VALUES.stage)}, with ${counted(CALLS.length, "call")} so far. `, SERVED ? reload : null);
}

function verdict() {
  const result = VALUES.result;
  if (!result) return unfinished();
  const lines = [];
  if (result.failure) {
    const cause = result.failure.policy ? "caused by the agent" : "infrastructure";
    lines.push(el("p", { class: "failure" }, el("b", {}, `failed in ${visible(result.failure.where)} (${cause}): `), visible(result.failure.type + ": " + result.failure.message)));
  }
  if (result.score) lines.push(scoreLines(result.score, "reward"));
  if (result.untrainable_reason) lines.push(el("p", {}, "not to be trained on: " + result.untrainable_reason));
  if (result.ended_by) lines.push(el("p", {}, `ended by its budget: ${visible(result.ended_by)} is used up`));
  if (result.health) lines.push(el("p", {}, "health: " + result.health.verdict), el("ul", {}, result.health.findings.map((each) => el("li", {}, visible(`${each.what} ${each.count}: ${each.detail}`)))));
  return el("div", {}, lines);
}

function legend() {
  const counts = new Array(5).fill(0);
  for (const kind of KINDS) counts[kind]++;
  const order = [KIND.TRAINED, KIND.DROPPED, KIND.UNPLACED, KIND.ECHOED, KIND.GIVEN].filter((kind) => kind !== KIND.UNPLACED || counts[kind]);
  const kinds = order.map((kind) =>
    el("li", { "data-count": kind === KIND.ECHOED ? null : counts[kind], "data-legend": KIND_CLASSES[kind] }, el("span", { class: "t " + KIND_CLASSES[kind] }, "token"), " " + KIND_NAMES[kind] + (kind === KIND.ECHOED ? ": again in a later prompt" : " " + counts[kind].toLocaleString("en"))));
  const tints = [...SURPRISE, Infinity].map((bound, level) => el("span", { class: "t trained p" + level, title: "-logprob below " + bound }, "\u00a0\u00a0"));
  return el("ul", { class: "legend" }, kinds, el("li", {}, "likely ", tints, " surprising"));
}

function pageHead() {
  const task = VALUES.task;
  const origin = VALUES.run_id ? "run " + visible(VALUES.run_id) : "all sessions";
  const home = SERVED ? el("a", { href: "/" }, origin) : VALUES.run_id ? origin : "at a server";
  const plugins = ["harness", "runtime", "builder", "evaluator"].map((kind) => `${kind} ${(task[kind] || {}).name || "–"}`);
  return el(
    "header",
    { class: "top" },
    el("h1", {}, visible(VALUES.session_id)),
    el("p", { class: "facts" }, el("span", {}, home), el("span", {}, "task " + visible(task.task_id || "")), el("span", {}, VALUES.stage), el("span", { class: "reward" }, "reward " + shownNumber(VALUES.reward)), el("span", {}, "attempt " + VALUES.attempt), plugins.map((each) => el("span", {}, visible(each)))),
    el("details", {}, el("summary", {}, "instruction"), longText(task.instruction || "")),
    VALUES.note ? el("p", { class: "note" }, visible(VALUES.note)) : null,
    light(),
    verdict(),
    timeline(),
    sessionFiles(),
    compareForm({ session: VALUES.session_id, builder: "" }, { session: VALUES.session_id, builder: "" }),
  );
}

function sessionFiles() {
  if (!VALUES.files.length) return null;
  const items = VALUES.files.map((file) => {
    const title = `${visible(file.path)}  ${counted(file.size_bytes, "byte")}` + (file.cut ? (file.text ? ", its end" : ", not here") : "");
    return el("li", {}, file.text ? el("details", {}, el("summary", {}, title), longText(file.text)) : title);
  });
  return el("details", { class: "files" }, el("summary", {}, counted(VALUES.files.length, "file")), el("ul", {}, items));
}

function drawPage() {
  const calls = CALLS.map(callSection);
  const map = el("details", { class: "mapbox", open: window.innerWidth > 900 }, el("summary", {}, counted(CALLS.length, "call")), forestMap());
  const nav = el("nav", { "aria-label": "calls" }, map);
  nav.addEventListener("scroll", () => followMap(nav), { passive: true });
  const help = el("button", { type: "button", id: "keys", title: "keys" }, "?");
  help.addEventListener("click", () => KEYS["?"][1]());
  document.getElementById("page").append(
    pageHead(),
    el("div", { class: "bar" }, legend(), searchBox(), help),
    el("div", { class: "columns" }, nav, el("main", {}, calls.length ? calls : el("p", { class: "quiet" }, "No model call was captured."))),
    el("footer", {}, `${counted(WORDS.length, "token")} · made by Polar ${visible(VALUES.made_by)}`),
    el("aside", { id: "inspector", hidden: true, "aria-label": "token" }),
    helpDialog(),
  );
  const onToken = (event, act) => {
    const span = event.target.closest ? event.target.closest(".block .t") : null;
    if (span) act(span);
  };
  document.addEventListener("pointerover", (event) => onToken(event, inspect));
  document.addEventListener("focusin", (event) => onToken(event, inspect));
  document.addEventListener("click", (event) => onToken(event, (span) => choose(span, span.closest(".context") === null)));
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", followAddress);
  followAddress();
}

drawPage();
