// What the dashboard adds to the trace viewer on the page of a session: actions, its neighbours, its log, and new calls.
const SESSION = { id: VALUES.session_id, stage: VALUES.stage, calls: VALUES.calls.length };
const HEAD = el("div", { class: "sessionbar", id: "sessionbar" });
const LOG_BOX = el("details", { class: "sessionlog", id: "sessionlog" }, el("summary", {}, "log of this session"), el("div", {}));
const STALE = el("p", { class: "note", id: "stale", hidden: true });

function sessionBar({ status }) {
  const open = status.result === null;
  return [
    link("/sessions", "‹ sessions"),
    stageMark(status.stage),
    link(sessionsWhere({ task_id: status.task_id }), "task " + status.task_id),
    status.group_id && status.group_id !== status.task_id ? link(sessionsWhere({ group_id: status.group_id }), "group " + status.group_id) : null,
    status.node_id ? link("/nodes", "node " + status.node_id) : null,
    open && status.cancel_requested ? el("span", { class: "warn" }, "cancel requested") : null,
    open && !status.cancel_requested ? button("Cancel session", () => cancelSession(SESSION.id), "danger") : null,
    open ? button("Cancel task", () => cancelTask(status.task_id), "danger") : null,
  ];
}

async function drawSession() {
  const status = await read("/v1/sessions/" + encodeURIComponent(SESSION.id));
  const log = await readLog({ session_id: SESSION.id });
  redraw(HEAD, { status: { ...status, result: status.result === null ? null : true } }, sessionBar);
  LOG_BOX.querySelector("summary").textContent = `log of this session (${counted(log.lines.length, "line")})`;
  redraw(LOG_BOX.lastChild, log.lines, (lines) => (lines.length ? [el("ol", { class: "log" }, lines.map(logLine))] : [el("p", { class: "quiet" }, "No line.")]));
  if (status.stage !== SESSION.stage) {
    STALE.hidden = false;
    redraw(STALE, status.stage, (stage) => [`The session is ${stageName(stage)} by now; this page shows it ${stageName(SESSION.stage)}. `, button("Load again", () => location.reload())]);
  }
}

document.getElementById("page").before(HEAD, STALE);
document.querySelector("#page > header").append(LOG_BOX);
follow(drawSession);
