// What the dashboard adds to the trace viewer on the page of a session: actions, its neighbours, its log, and new calls.
const SESSION = { id: VALUES.session_id, stage: VALUES.stage, version: Number(document.getElementById("page").dataset.version), open: VALUES.result === null };
const WAIT_S = 20;
const PAUSE_MS = 3000;
const FOLLOW = el("input", { type: "checkbox", id: "follow" });
const HEAD = el("div", { class: "sessionbar", id: "sessionbar" });
const LOG_BOX = el("details", { class: "sessionlog", id: "sessionlog" }, el("summary", {}, "log of this session"), el("div", {}));
const WAITS = el("p", { class: "note", id: "waits", hidden: true });
const STALE = el("p", { class: "note", id: "stale", hidden: true });

function sessionBar({ status }) {
  const open = status.result === null;
  return [
    link("/sessions", "‹ sessions"),
    stageMark(status.stage),
    link(sessionsWhere({ task_id: status.task_id }), "task " + status.task_id),
    status.group_id && status.group_id !== status.task_id ? link(sessionsWhere({ group_id: status.group_id }), "group " + status.group_id) : null,
    status.node_id ? link("/nodes", "node " + status.node_id) : null,
    open ? el("label", {}, FOLLOW, " follow it") : null,
    open && status.cancel_requested ? el("span", { class: "warn" }, "cancel requested") : null,
    open && !status.cancel_requested ? button("Cancel session", () => cancelSession(SESSION.id), "danger") : null,
    open ? button("Cancel task", () => cancelTask(status.task_id), "danger") : null,
  ];
}

async function drawSession() {
  const status = await read("/v1/sessions/" + encodeURIComponent(SESSION.id));
  const log = await readLog({ session_id: SESSION.id });
  redraw(HEAD, { status: { ...status, result: status.result === null ? null : true } }, sessionBar);
  WAITS.hidden = !status.waits;
  WAITS.textContent = visible("It waits for a node: " + status.waits);
  LOG_BOX.querySelector("summary").textContent = `log of this session (${counted(log.lines.length, "line")})`;
  redraw(LOG_BOX.lastChild, log.lines, (lines) => (lines.length ? [el("ol", { class: "log" }, lines.map(logLine))] : [el("p", { class: "quiet" }, "No line.")]));
  if (status.stage !== SESSION.stage) changed(`The session is ${stageName(status.stage)} by now; this page shows it ${stageName(SESSION.stage)}. `);
}

// What is shown is no longer the newest: loads the page again, or says so to who does not follow.
function changed(text) {
  if (FOLLOW.checked && !document.querySelector("dialog[open]")) {
    location.reload(); // the browser keeps the place
    return;
  }
  STALE.hidden = false;
  redraw(STALE, text, (shown) => [shown, button("Load again", () => location.reload())]);
}

// Asking tells the session's node that somebody looks: it sends new calls from then on.
async function watchCalls() {
  const path = "/v1/sessions/" + encodeURIComponent(SESSION.id) + "/live";
  let known = SESSION.version;
  while (SESSION.open) {
    let answer = null;
    try {
      answer = await fetch(`${path}?after=${known}&wait_s=${WAIT_S}`, { cache: "no-store" });
    } catch (error) {
      // the frame shows that the server is away
    }
    if (answer && answer.status === 200) {
      known = Number(answer.headers.get("polar-version"));
      changed("There are new calls. ");
    } else if (answer && answer.headers.get("polar-ended")) return; // which the frame finds out
    if (!answer || answer.status !== 204 || document.hidden) await new Promise((done) => setTimeout(done, PAUSE_MS));
  }
}

FOLLOW.checked = sessionStorage.getItem("polar-follow") !== "no";
FOLLOW.addEventListener("change", () => sessionStorage.setItem("polar-follow", FOLLOW.checked ? "yes" : "no"));

document.getElementById("page").before(HEAD, WAITS, STALE);
document.querySelector("#page > header").append(LOG_BOX);
follow(drawSession);
if (SESSION.open) watchCalls();
