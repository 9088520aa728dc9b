// The record of control actions, the newest first: who did what from where, and what the server refused.
const ACTIONS_PER_PAGE = 100;
const LONGEST_DETAIL = 300;
const ENTRIES = el("tbody", { id: "rows" });
const TURN = el("p", { class: "pager" });
const NO_ENTRY = el("p", { class: "quiet", id: "empty", hidden: true }, "No action is recorded here.");
const BEFORE = () => new URLSearchParams(location.search).get("before");
const FILTER_NAMES = new Set(["task_id", "group_id"]);

// What was refused is no link: it may not exist.
function detailOf([name, value], done) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  const cut = text.length > LONGEST_DETAIL ? text.slice(0, LONGEST_DETAIL) + "…" : text;
  const address = FILTER_NAMES.has(name) ? sessionsWhere({ [name]: text }) : name === "session_id" ? sessionAddress(text) : null;
  return el("span", {}, el("span", { class: "quiet" }, visible(name) + " "), address && done ? link(address, cut) : visible(cut));
}

function outcomeMark(outcome) {
  return outcome === "done" ? el("span", { class: "good" }, "✓ done") : el("span", { class: "bad" }, "✕ " + visible(outcome));
}

function actionRow(entry) {
  const at = new Date(entry.at * 1000);
  const who = [entry.token, entry.address].filter(Boolean).join(" · ");
  return el(
    "tr",
    { "data-action": entry.cursor },
    el("td", {}, el("time", { title: at.toLocaleString() }, at.toLocaleDateString("sv") + " " + at.toLocaleTimeString("sv"))),
    el("td", {}, visible(entry.by), who ? el("div", { class: "quiet small" }, visible(who)) : null),
    el("td", {}, visible(entry.action)),
    el("td", {}, outcomeMark(entry.outcome)),
    el("td", { class: "detail" }, Object.entries(entry.detail).map((fact) => detailOf(fact, entry.outcome === "done"))),
  );
}

async function drawActions() {
  const page = await read("/v1/actions", { before: BEFORE(), limit: ACTIONS_PER_PAGE + 1 }); // one more tells whether there are older ones
  const shown = page.actions.slice(-ACTIONS_PER_PAGE).reverse();
  const older = page.actions.length > ACTIONS_PER_PAGE ? shown[shown.length - 1].cursor : null;
  redrawRows(ENTRIES, shown, (entry) => entry.cursor, actionRow);
  NO_ENTRY.hidden = shown.length > 0;
  redraw(TURN, { older, newest: BEFORE() !== null }, (at) => [at.newest ? link("/actions", "« newest") : null, at.older === null ? null : link("/actions?before=" + at.older, "older ›")]);
}

document.getElementById("page").append(
  el("main", { class: "live" }, el("h1", {}, "Actions"), el("p", { class: "hint" }, "What changed this service, or was refused. A token is named by its fingerprint, as in polar token ls; login: a browser that logged in with it."), el("div", { class: "actions" }, table([["when"], ["who"], ["what"], ["outcome"], ["detail"]], ENTRIES)), NO_ENTRY, TURN),
);
follow(drawActions);
