// The map: calls from top to bottom as they came, a column for each chain that is open, breaks as dashed lines.
const ROW = 24;
const COLUMN = 18;
const LEFT = 14;
const MOST_COLUMNS = 12;

function columnsOfCalls() {
  const last = new Map();
  for (const call of CALLS) last.set(call.chain, call.number);
  const free = [];
  const open = new Map();
  let width = 0;
  const columns = CALLS.map((call) => {
    if (!open.has(call.chain)) open.set(call.chain, free.length ? free.shift() : width++);
    const column = open.get(call.chain);
    if (last.get(call.chain) === call.number) {
      free.push(column);
      free.sort((one, other) => one - other);
    }
    return Math.min(column, MOST_COLUMNS);
  });
  return { columns, width: Math.min(width, MOST_COLUMNS + 1) };
}

// Only the rows near the visible part of the map are drawn: a session may have thousands.
const MAP = { drawing: null, here: 0, from: 0, to: 0 };
const MAP_MARGIN = 12;

function forestMap() {
  const { columns, width } = columnsOfCalls();
  MAP.at = (number) => [LEFT + columns[number - 1] * COLUMN, 14 + (number - 1) * ROW];
  MAP.labels = LEFT + width * COLUMN + 2;
  const broken = (call) => !call.continues || call.fork !== null;
  const children = CALLS.filter((call) => call.parent !== null);
  // Breaks first: where lines share a column, the one that continues is on top.
  MAP.edges = [...children.filter(broken), ...children.filter((call) => !broken(call))].map((call) => [call.parent, call.number, broken(call)]);
  MAP.drawing = svg("svg", { class: "map", width: MAP.labels + 190, height: 12 + CALLS.length * ROW, role: "group", "aria-label": "Map of the calls" });
  drawMap(1, 60);
  return MAP.drawing;
}

function drawMap(from, to) {
  MAP.from = Math.max(1, from);
  MAP.to = Math.min(CALLS.length, to);
  const rows = document.createDocumentFragment();
  for (const [parent, number, broken] of MAP.edges) {
    if (number >= MAP.from && parent <= MAP.to) rows.append(edge(MAP.at(parent), MAP.at(number), broken));
  }
  for (const call of CALLS.slice(MAP.from - 1, MAP.to)) rows.append(mapNode(call, MAP.at(call.number), MAP.labels));
  MAP.drawing.replaceChildren(rows);
}

function followMap(nav) {
  const first = Math.floor(nav.scrollTop / ROW) + 1;
  const last = Math.ceil((nav.scrollTop + nav.clientHeight) / ROW) + 1;
  const missing = (first < MAP.from + 5 && MAP.from > 1) || (last > MAP.to - 5 && MAP.to < CALLS.length);
  if (missing) drawMap(first - MAP_MARGIN, last + MAP_MARGIN);
}

function markOnMap(number) {
  MAP.here = number;
  const nav = MAP.drawing.closest("nav");
  const y = MAP.at(number)[1];
  if (y < nav.scrollTop + ROW || y > nav.scrollTop + nav.clientHeight - 3 * ROW) nav.scrollTop = y - nav.clientHeight / 2;
  followMap(nav);
  for (const node of MAP.drawing.querySelectorAll(".node")) node.classList.toggle("here", Number(node.dataset.map) === number);
}

function edge([x, y], [toX, toY], broken) {
  const path = x === toX ? `M${x},${y}V${toY}` : `M${x},${y}V${toY - ROW}Q${x},${toY} ${toX},${toY}`;
  return svg("path", { d: path, class: broken ? "edge broken" : "edge" });
}

function mapNode(call, [x, y], labels) {
  const shape = call.kind === "agent"
    ? svg("circle", { cx: x, cy: y, r: 6 })
    : svg("rect", { x: x - 5, y: y - 5, width: 10, height: 10 });
  const words = [call.kind === "agent" ? "" : call.kind, call.fork ? "break: " + call.fork.reason : ""].filter(Boolean).join(" ");
  const title = `call ${call.number}, ${call.kind}, ${call.finish_reason}` + (call.fork ? `, break: ${call.fork.reason}` : "");
  return svg(
    "a",
    { href: "#call-" + call.number, class: "node" + (call.trace === null ? " untrained" : "") + (call.number === MAP.here ? " here" : ""), "data-map": call.number },
    svg("title", {}, visible(title)),
    svg("rect", { class: "row", x: 0, y: y - ROW / 2, width: labels + 190, height: ROW }),
    shape,
    svg("text", { x: labels, y: y + 4 }, visible(`${call.number}  ${call.sampled} tok  ${words}`).slice(0, 34)),
  );
}

// Stages as a bar over time, with a mark for each call.
function timeline() {
  const stages = VALUES.stages;
  const ends = [...stages.map((stage) => stage[1]), ...CALLS.map((call) => call.times[2])];
  if (!ends.length) return el("p", { class: "quiet" }, "No stage is recorded yet.");
  const first = Math.min(...ends, ...CALLS.map((call) => call.times[0]));
  const span = Math.max(Math.max(...ends) - first, 0.001);
  const x = (at) => ((at - first) / span) * 1000;
  const bar = svg("svg", { class: "timeline", viewBox: "0 0 1000 30", preserveAspectRatio: "none", role: "img", "aria-label": "Stages over time" });
  const list = el("ol", { class: "stages" });
  stages.forEach(([name, at], i) => {
    const end = i + 1 < stages.length ? stages[i + 1][1] : first + span;
    bar.append(svg("rect", { class: "stage s" + (i % 6), x: x(at), y: 0, width: Math.max(x(end) - x(at), 1), height: 16 }, svg("title", {}, name)));
    const took = i + 1 < stages.length ? seconds(end - at) : "";
    list.append(el("li", {}, el("i", { class: "swatch s" + (i % 6) }), name + " ", el("b", {}, took)));
  });
  for (const call of CALLS) {
    const [from, , to] = call.times;
    bar.append(svg("rect", { class: "calltime", x: x(from), y: 19, width: Math.max(x(to) - x(from), 1.5), height: 9 }, svg("title", {}, `call ${call.number}, ${seconds(to - from)}`)));
  }
  return el("div", {}, bar, list);
}
