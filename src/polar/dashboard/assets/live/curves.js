// Values that several pages read: the points of training runs, and lines of the log.
const RUNS = new Map(); // by run: { cursor, points: Map }
const PAGE_OF_POINTS = 10000;

// All points of a run; only what is new since the last time is asked for. A step that was done again replaces itself.
async function pointsOf(runId) {
  const known = RUNS.get(runId) || { cursor: 0, points: new Map() };
  RUNS.set(runId, known);
  for (;;) {
    const page = await read("/v1/training/" + encodeURIComponent(runId), { after: known.cursor, limit: PAGE_OF_POINTS });
    for (const point of page.points) known.points.set(point.phase + " " + point.step, point);
    known.cursor = page.cursor;
    if (page.points.length < PAGE_OF_POINTS) break;
  }
  return [...known.points.values()].sort((a, b) => a.step - b.step);
}

function curve(points, name) {
  return points.filter((point) => point.metrics[name] !== undefined).map((point) => [point.step, point.metrics[name]]);
}

// Rewards and success first, then losses, then everything else by name.
function rank(name) {
  const order = [/^(mean_)?reward(\/|$|_mean)/, /reward/, /^pass/, /success|solved|accuracy|score/, /loss/, /entropy/, /kl/, /grad/];
  const place = order.findIndex((each) => each.test(name));
  return place < 0 ? order.length : place;
}

function metricNames(points) {
  const names = [...new Set(points.flatMap((point) => Object.keys(point.metrics)))];
  return names.sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
}

function rewardName(points) {
  const first = metricNames(points)[0];
  return first !== undefined && rank(first) < 4 ? first : undefined;
}

// Lines of the log, or none where the server cannot give them: the rest of a page does not wait for it.
async function readLog(query) {
  try {
    return await read("/v1/overview/log", query);
  } catch (error) {
    if (error instanceof Refused) return { lines: [], cursor: 0 };
    throw error;
  }
}

const LEVELS = { info: "·", warning: "▲", error: "✕" };

function logLine(line) {
  const at = new Date(line.at * 1000);
  const time = el("time", { title: at.toLocaleString() }, at.toLocaleTimeString("en-GB"));
  const session = line.session_id ? [" ", link(sessionAddress(line.session_id), line.session_id)] : [];
  return el("li", { class: line.level, "data-level": line.level }, time, " ", el("span", { class: "sign", title: line.level }, LEVELS[line.level] || "?"), " ", el("b", {}, visible(line.source)), " ", visible(line.message), session);
}
