// The log of server and nodes: warnings and errors of nodes, and what the server writes.
const MOST_LINES = 2000;
const LINES = el("ol", { class: "log", id: "lines" });
const LOG = { cursor: null, lines: [], number: 0 };
const LEVEL = el("select", { id: "level", "aria-label": "level" }, [["info", "all levels"], ["warning", "warnings and errors"], ["error", "errors"]].map(([value, text]) => el("option", { value }, text)));
const TEXT = el("input", { type: "search", id: "text", placeholder: "contains", "aria-label": "contains" });
const TAIL = el("input", { type: "checkbox", id: "tail", checked: true });
const NO_LINE = el("p", { class: "quiet", id: "empty" }, "No line yet. Nodes send their warnings and errors here; the server adds its own.");
const ORDER = { info: 0, warning: 1, error: 2 };

function fits(line) {
  const text = TEXT.value.trim().toLowerCase();
  return ORDER[line.level] >= ORDER[LEVEL.value] && (!text || (line.source + " " + line.message + " " + (line.session_id || "")).toLowerCase().includes(text));
}

function showLines() {
  const shown = LOG.lines.filter(fits);
  redrawRows(LINES, shown, (line) => line.number, logLine);
  NO_LINE.hidden = shown.length > 0;
  NO_LINE.textContent = LOG.lines.length ? "No line fits." : "No line yet. Nodes send their warnings and errors here; the server adds its own.";
}

async function drawLog() {
  const session = new URLSearchParams(location.search).get("session_id");
  const page = await readLog({ after: LOG.cursor, session_id: session });
  if (LOG.cursor !== null && page.cursor < LOG.cursor) LOG.lines = []; // another database
  LOG.cursor = page.cursor;
  LOG.lines = LOG.lines.concat(page.lines.map((line) => ({ ...line, number: LOG.number++ }))).slice(-MOST_LINES);
  showLines();
  if (page.lines.length && TAIL.checked) LINES.scrollTop = LINES.scrollHeight;
}

for (const input of [LEVEL, TEXT]) input.addEventListener("input", showLines);
document.getElementById("page").append(el("main", { class: "live" }, el("h1", {}, "Log"), el("div", { class: "logbar" }, LEVEL, TEXT, el("label", {}, TAIL, " follow the end")), LINES, NO_LINE));
follow(drawLog);
