// How pages draw: lists that keep the rows that did not change, times that go on, signs for states.
const STAGES = ["QUEUED", "INIT", "READY", "RUNNING", "POSTRUN"];
const ENDS = ["COMPLETED", "FAILED", "TIMED_OUT", "CANCELLED"];
const SIGNS = { QUEUED: "⋯", INIT: "◔", READY: "◑", RUNNING: "▶", POSTRUN: "◕", COMPLETED: "✓", FAILED: "✕", TIMED_OUT: "◴", CANCELLED: "–" };
const CLOCK = { ahead: 0 }; // the server's time minus ours, in seconds

const number = (value, digits = 0) => (value === null || value === undefined ? "–" : Number(value).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
const percent = (part, whole) => (whole ? Math.round((100 * part) / whole) + " %" : "–");
const stageName = (stage) => stage.toLowerCase().replace("_", " ");

// Three significant digits, such as 0.125, 12.5 or 12,500.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toLocaleString("en", { maximumFractionDigits: 1 }) + " M";
  if (size !== 0 && size < 0.001) return Number(value).toExponential(1);
  return Number(value).toLocaleString("en", size >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 3 });
}

function lasted(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return value.toFixed(1) + " s";
  if (value < 120) return Math.round(value) + " s";
  if (value < 7200) return Math.round(value / 60) + " min";
  return value < 172800 ? Math.round(value / 3600) + " h" : Math.round(value / 86400) + " d";
}

const nowAtServer = () => Date.now() / 1000 + CLOCK.ahead;

// The time since `at`, which the page keeps up to date.
function since(at) {
  const time = el("time", { "data-since": at, title: new Date(at * 1000).toLocaleString() });
  time.textContent = lasted(Math.max(0, nowAtServer() - at));
  return time;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[data-since]")) time.textContent = lasted(Math.max(0, nowAtServer() - Number(time.dataset.since)));
}, 1000);

function stageMark(stage) {
  return el("span", { class: "stage " + stage }, el("span", { class: "sign", "aria-hidden": "true" }, SIGNS[stage] || "?"), " " + stageName(stage));
}

function sessionAddress(sessionId) {
  return "/sessions/" + encodeURIComponent(sessionId);
}

function sessionsWhere(filter) {
  return "/sessions?" + new URLSearchParams(filter).toString();
}

function link(address, text) {
  return el("a", { href: address }, visible(text));
}

// Makes a part of the page again only if its values have changed, so that what was opened or chosen stays.
function redraw(parent, values, make) {
  const text = JSON.stringify(values);
  if (parent.shownValues === text) return;
  parent.shownValues = text;
  const made = make(values);
  parent.replaceChildren(...(Array.isArray(made) ? made.flat() : [made]).filter((each) => each !== null));
}

// The same for the rows of a list, each known by its key.
function redrawRows(parent, items, key, make) {
  const old = parent.shownRows || new Map();
  const now = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    const text = JSON.stringify(item);
    const name = key(item);
    let row = old.get(name);
    if (!row || row.text !== text) {
      const node = make(item);
      if (row) {
        if (place === row.node) place = node;
        row.node.replaceWith(node);
      }
      row = { text, node };
    }
    if (row.node === place) place = place.nextSibling;
    else parent.insertBefore(row.node, place);
    now.set(name, row);
  }
  for (const [name, row] of old) if (!now.has(name)) row.node.remove();
  parent.shownRows = now;
}

function table(heads, body) {
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, heads.map(([name, kind, title]) => el("th", { class: kind || null, title: title || null, scope: "col" }, name)))), body));
}

function panel(id, title, hint) {
  const body = el("div", { class: "panelbody" });
  const heading = el("h2", {}, title);
  const section = el("section", { class: "panel", id, "aria-label": title }, heading, hint ? el("p", { class: "hint" }, hint) : null, body);
  return { section, body, heading };
}

// What to do where there is nothing to show yet.
function teach(text, command) {
  return el("div", { class: "teach" }, el("p", {}, text), command ? el("pre", {}, command) : null);
}

function meter(part, whole, label) {
  const share = whole ? Math.min(1, part / whole) : 0;
  const bar = svg("svg", { class: "meter", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("rect", { class: "ground", width: 100, height: 8 }), svg("rect", { class: "part", width: 100 * share, height: 8 }));
  return bar;
}
