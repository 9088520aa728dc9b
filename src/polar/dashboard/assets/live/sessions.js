// The sessions, the newest first. What is chosen stands in the address, so that it can be sent and gone back to.
const PAGE_ROWS = 100;
const REASONS = ["not_final", "stale", "cancelled", "infrastructure", "no_reward", "no_token_ids", "no_trainable_tokens", "not_certified", "not_exact"];
const FILTERS = [
  ["stage", "stage", [...STAGES, ...ENDS].map((stage) => [stage, stageName(stage)])],
  ["open", "result", [["true", "none yet"], ["false", "has one"]]],
  ["failed_by", "failed by", [["any", "anything"], ["infrastructure", "infrastructure"], ["agent", "the agent"]]],
  ["failure_type", "failure", null],
  ["untrainable", "not trained on", REASONS.map((reason) => [reason, reason.replaceAll("_", " ")])],
  ["harness", "harness", null],
  ["task_id", "task", null],
  ["group_id", "group", null],
  ["node_id", "node", null],
  ["reward_at_least", "reward from", "number"],
  ["reward_at_most", "to", "number"],
  ["text", "id contains", "search"],
];
const BODY = el("tbody", { id: "rows" });
const COUNT = el("p", { id: "count", class: "quiet", role: "status" });
const PROBLEM = el("p", { class: "failure", id: "problem", role: "alert" });
const PAGER = el("p", { class: "pager" });
const NAMES = new Map(); // of the nodes that the server knows, by id
const EMPTY = el("div", { id: "empty" });

const chosen = () => Object.fromEntries(new URLSearchParams(location.search));

function choose(changes) {
  const now = { ...chosen(), ...changes };
  const given = Object.entries(now).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  history.pushState(null, "", given.length ? "/sessions?" + new URLSearchParams(given).toString() : "/sessions");
  showFilters();
  refreshNow();
}

function field([name, label, kind]) {
  const options = Array.isArray(kind) ? [["", "any"], ...kind].map(([value, text]) => el("option", { value }, text)) : null;
  const input = options ? el("select", { name }, options) : el("input", { name, type: kind || "text", step: "any", maxlength: 200, placeholder: kind === "number" ? "–" : "any" });
  input.addEventListener("change", () => choose({ [name]: input.value.trim(), before: "" }));
  return el("label", { class: "filter", "data-filter": name }, el("span", {}, label), input);
}

function showFilters() {
  const now = chosen();
  let active = 0;
  for (const [name] of FILTERS) {
    const input = document.querySelector(`[data-filter="${name}"] :is(input, select)`);
    input.value = now[name] || "";
    active += now[name] ? 1 : 0;
    input.closest("label").classList.toggle("active", Boolean(now[name]));
  }
  document.getElementById("filtercount").textContent = active ? counted(active, "filter") + " active" : "Filters";
  document.getElementById("clear").hidden = !active;
}

function verdictOf(row) {
  if (row.failure_type) return el("span", { class: row.failed_by_agent ? "warn" : "bad" }, `${row.failed_by_agent ? "agent" : "infrastructure"}: ${visible(row.failure_type)}`, el("span", { class: "quiet" }, row.failure_where ? " in " + visible(row.failure_where) : ""));
  if (row.cancel_requested && row.trainable === null) return "cancel requested";
  return row.untrainable_reason ? el("span", { class: "quiet" }, "not trained on: " + row.untrainable_reason.replaceAll("_", " ")) : "";
}

function sessionRow(row) {
  const facts = [row.attempt > 1 ? "attempt " + row.attempt : "", row.policy_updates ? counted(row.policy_updates, "update") + " under it" : "", row.health && row.health !== "ok" ? "health " + row.health : ""].filter(Boolean);
  const stop = row.trainable === null && !row.cancel_requested ? button("Cancel", () => cancelSession(row.session_id), "small") : null;
  return el(
    "tr",
    { "data-session": row.session_id },
    el("td", {}, link(sessionAddress(row.session_id), row.session_id), facts.length ? el("div", { class: "quiet small" }, facts.join(" · ")) : null),
    el("td", {}, stageMark(row.stage)),
    el("td", { class: "n wide" }, row.since === null ? "–" : since(row.since)),
    el("td", { class: "n" }, row.reward === null ? "–" : row.reward.toFixed(3)),
    el("td", {}, verdictOf(row)),
    el("td", { class: "wide" }, visible(row.harness), el("span", { class: "quiet" }, " · " + visible(row.runtime))),
    [row.calls, row.traces, row.sampled_tokens].map((count) => el("td", { class: "n wide" }, row.trainable === null ? "" : number(count))),
    el("td", { class: "wide" }, row.node_id ? link(sessionsWhere({ node_id: row.node_id }), NAMES.get(row.node_id) || row.node_id) : ""),
    el("td", {}, stop),
  );
}

async function drawSessions(overview) {
  const query = { ...chosen(), limit: PAGE_ROWS };
  let page;
  try {
    page = await read("/v1/overview/sessions", query);
    PROBLEM.textContent = "";
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    PROBLEM.textContent = visible(error.message);
    page = { sessions: [], before: null, looked: null };
  }
  for (const node of overview.nodes) NAMES.set(node.node_id, node.name);
  redrawRows(BODY, page.sessions, (row) => row.session_id, sessionRow);
  const total = Object.values(overview.stages).reduce((sum, each) => sum + each, 0);
  const { before, ...filters } = chosen();
  COUNT.textContent = `${counted(page.sessions.length, "session")} shown of ${number(total)} in all${before ? ", older ones" : ""}${page.looked ? `; looked at ${number(page.looked)} that have ended, older ones may fit too` : ""}`;
  redraw(PAGER, { older: page.before, newest: Boolean(before), further: page.looked !== null }, (at) => [at.newest ? button("« newest", () => choose({ before: "" })) : null, at.newest ? button("‹ newer", () => history.back()) : null, at.older === null ? null : button(at.further ? "look further ›" : "older ›", () => choose({ before: at.older }))]);
  const nothing = page.sessions.length ? "" : page.looked ? "None of these fits." : total ? "No session fits these filters." : "none";
  redraw(EMPTY, nothing, (text) => (text === "" ? [] : text === "none" ? [teach("No task has been submitted yet. Submit a task file from any machine that has the control token:", "polar submit tasks.toml --server " + location.origin)] : [el("p", { class: "quiet" }, PROBLEM.textContent ? "" : text)]));
}

const clear = button("Clear", () => choose(Object.fromEntries(FILTERS.map(([name]) => [name, ""]).concat([["before", ""]]))));
clear.id = "clear";
const box = el("details", { class: "filters", open: window.innerWidth > 900 }, el("summary", {}, el("span", { id: "filtercount" }, "Filters")), el("div", { class: "fields" }, FILTERS.map(field), clear));
const heads = [["session"], ["stage"], ["since", "n wide"], ["reward", "n"], ["verdict"], ["harness", "wide"], ["calls", "n wide"], ["rows", "n wide", "traces"], ["sampled", "n wide", "tokens"], ["node", "wide"], [""]];
document.getElementById("page").append(el("main", { class: "live" }, el("h1", {}, "Sessions"), box, PROBLEM, COUNT, table(heads, BODY), EMPTY, PAGER));
showFilters();
window.addEventListener("popstate", () => {
  showFilters();
  refreshNow();
});
follow(drawSessions);
