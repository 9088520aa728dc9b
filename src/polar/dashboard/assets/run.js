// The sessions of a run, and search over all of them.
const STAGE_SIGNS = { COMPLETED: "✓", FAILED: "✕", TIMED_OUT: "⧖", CANCELLED: "–" };

function sessionLink(session_id, call) {
  const where = call === undefined ? "" : "#call-" + call;
  return el("a", { href: "/sessions/" + encodeURIComponent(session_id) + where }, visible(session_id) + (call === undefined ? "" : " call " + call));
}

function sessionRow(session) {
  const state = (STAGE_SIGNS[session.stage] || "…") + " " + session.stage.toLowerCase();
  return el(
    "tr",
    {},
    el("td", {}, sessionLink(session.session_id)),
    el("td", {}, state),
    el("td", { class: "n" }, shownNumber(session.reward)),
    el("td", { class: "n" }, session.calls.toLocaleString("en")),
    el("td", { class: "n wide" }, session.sampled_tokens.toLocaleString("en")),
    el("td", { class: "wide" }, visible(session.failure || session.instruction.slice(0, 120))),
  );
}

function sessionTable() {
  const head = [["session"], ["stage"], ["reward", "n"], ["calls", "n"], ["sampled", "n wide"], ["task or failure", "wide"]];
  return el(
    "table",
    {},
    el("thead", {}, el("tr", {}, head.map(([name, kind]) => el("th", { class: kind }, name)))),
    el("tbody", {}, VALUES.sessions.map(sessionRow)),
  );
}

async function searchRun(text, output) {
  output.replaceChildren(el("p", { class: "quiet" }, "searching"));
  const answer = await fetch("/search?q=" + encodeURIComponent(text));
  const { hits, more } = await answer.json();
  const items = hits.map((hit) => el("li", {}, sessionLink(hit.session_id, hit.call), " ", visible(hit.text[0]), el("mark", {}, visible(hit.text[1])), visible(hit.text[2])));
  output.replaceChildren(el("p", {}, counted(hits.length, "call") + (more ? " shown, there may be more" : "")), el("ul", { class: "hits" }, items));
}

function drawRun() {
  const input = el("input", { id: "search", type: "search", placeholder: "search all sessions", "aria-label": "search all sessions" });
  const output = el("div", { id: "hits" });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && input.value.trim()) searchRun(input.value, output);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input")) return;
    event.preventDefault();
    input.focus();
  });
  const started = new Date(VALUES.started * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  document.getElementById("page").append(
    el("header", { class: "top" }, el("h1", {}, visible(VALUES.title || "run " + VALUES.run_id)), el("p", { class: "facts" }, el("span", {}, counted(VALUES.sessions.length, "session")), el("span", {}, "started " + started))),
    el("div", { class: "bar" }, el("label", { class: "search" }, input)),
    output,
    sessionTable(),
    el("footer", {}, "made by Polar " + visible(VALUES.made_by)),
  );
}

drawRun();
