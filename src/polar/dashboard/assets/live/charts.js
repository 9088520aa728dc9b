// Charts: lines differ by colour, dash and marker, and carry their names. Readable by pointer and by arrow keys.
const DASHES = ["", "7 4", "2 3", "11 3 2 3", "1 4", "15 4"];
const MARKS = ["M-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0", "M-3-3h6v6h-6z", "M0-4L4 3H-4z", "M0-4L4 0L0 4L-4 0z", "M-3-3L3 3M-3 3L3-3", "M-4-3H4L0 4z"];
const HEIGHT = 190;
const SMOOTHING = 0.85;

function sparkline(values, label) {
  const width = 120;
  const top = Math.max(...values, 1e-9);
  const step = width / Math.max(1, values.length - 1);
  const at = (value, index) => `${(index * step).toFixed(1)} ${(26 - 23 * (value / top)).toFixed(1)}`;
  const path = values.length > 1 ? "M" + values.map(at).join("L") : "";
  return svg("svg", { class: "spark", viewBox: `0 0 ${width} 28`, preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("path", { d: path }));
}

// About `count` round numbers that span the values.
function ticksOf(low, high, count, whole = false) {
  const span = high - low || Math.abs(high) || 1;
  const rough = span / count;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const steps = whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10];
  const step = Math.max(whole ? 1 : 0, steps.map((each) => each * unit).find((each) => each >= rough * 0.999));
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + step * 1e-9; tick += step) ticks.push(Math.abs(tick) < step * 1e-9 ? 0 : tick);
  return ticks;
}

function smoothed(points) {
  let mean = 0;
  let weight = 0;
  return points.map(([x, y]) => {
    mean = SMOOTHING * mean + (1 - SMOOTHING) * y;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return [x, mean / weight];
  });
}

function scales(series, width, right, unit) {
  const all = series.flatMap((each) => each.points);
  const xs = all.map((point) => point[0]);
  const ys = all.map((point) => point[1]);
  let [low, high] = [ys.reduce((a, b) => Math.min(a, b), Infinity), ys.reduce((a, b) => Math.max(a, b), -Infinity)];
  if (unit && low >= 0 && high <= 1) [low, high] = [0, 1];
  else {
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    [low, high] = [low >= 0 && low < room * 8 ? 0 : low - room, high + room];
  }
  const first = xs.reduce((a, b) => Math.min(a, b), Infinity);
  const last = xs.reduce((a, b) => Math.max(a, b), -Infinity);
  const left = 46;
  const inner = Math.max(40, width - left - right);
  return {
    low, high, first, last, left, inner,
    x: (value) => left + (last === first ? inner / 2 : (inner * (value - first)) / (last - first)),
    y: (value) => 10 + (HEIGHT - 36) * (1 - (value - low) / (high - low || 1)),
  };
}

// Names at the ends of the lines, moved apart where they would overlap.
function endLabels(series, scale) {
  const placed = series.map((each, index) => ({ index, name: each.name, y: scale.y(each.points[each.points.length - 1][1]) })).sort((a, b) => a.y - b.y);
  placed.forEach((label, index) => {
    if (index && label.y < placed[index - 1].y + 13) label.y = placed[index - 1].y + 13;
  });
  const over = placed.length ? placed[placed.length - 1].y - (HEIGHT - 24) : 0;
  return placed.map((label) => {
    const shown = label.name.length > 15 ? label.name.slice(0, 14) + "…" : label.name;
    return svg("text", { class: "endlabel l" + (label.index % 6), x: scale.x(series[label.index].points[series[label.index].points.length - 1][0]) + 9, y: label.y + 4 - Math.max(0, over) }, visible(shown), svg("title", {}, visible(label.name)));
  });
}

function axes(scale) {
  const rows = ticksOf(scale.low, scale.high, 4).map((tick) => svg("g", {}, svg("line", { class: "grid", x1: scale.left, x2: scale.left + scale.inner, y1: scale.y(tick), y2: scale.y(tick) }), svg("text", { class: "tick", x: scale.left - 6, y: scale.y(tick) + 4, "text-anchor": "end" }, short(tick))));
  const whole = ticksOf(scale.first, scale.last, Math.max(3, Math.floor(scale.inner / 60)), true);
  const columns = (scale.first === scale.last ? [scale.first] : whole).map((tick) => svg("text", { class: "tick", x: scale.x(tick), y: HEIGHT - 8, "text-anchor": "middle" }, number(tick)));
  return [...rows, ...columns];
}

function lineOf(points, scale) {
  return "M" + points.map(([x, y]) => `${scale.x(x).toFixed(1)} ${scale.y(y).toFixed(1)}`).join("L");
}

function drawnSeries(each, index, scale, smooth) {
  const kind = "l" + (index % 6);
  const every = each.points.length <= 14 ? 1 : Math.ceil(each.points.length / 7);
  const marks = each.points.filter((_, place) => place % every === Math.min(every - 1, index * 2));
  const shown = smooth && each.points.length > 12 ? smoothed(each.points) : each.points;
  const faint = shown === each.points ? null : svg("path", { class: "line faint " + kind, d: lineOf(each.points, scale) });
  const where = new Map(shown.map((point) => [point[0], point]));
  return svg(
    "g",
    { "data-series": each.name },
    faint,
    svg("path", { class: "line " + kind, d: lineOf(shown, scale), "stroke-dasharray": DASHES[index % 6] }),
    marks.map(([x]) => svg("path", { class: "mark " + kind, d: MARKS[index % 6], transform: `translate(${scale.x(x).toFixed(1)} ${scale.y(where.get(x)[1]).toFixed(1)})` })),
  );
}

// `series`: [{ name, points: [[step, value], ...] }] in the order of steps. Returns an element that draws itself.
// `unit`: values between 0 and 1 are shown on an axis from 0 to 1, as rewards and rates are.
function lineChart(title, series, { smooth = false, unit = false } = {}) {
  const readout = el("output", { class: "readout" });
  const drawing = svg("svg", { class: "chart", tabindex: 0, role: "img", "aria-label": title });
  const figure = el("figure", { class: "chartbox" }, el("figcaption", {}, el("b", {}, visible(title)), readout), drawing);
  const steps = [...new Set(series.flatMap((each) => each.points.map((point) => point[0])))].sort((a, b) => a - b);
  const state = { scale: null, at: steps.length - 1, cursor: svg("line", { class: "cursor", y1: 10, y2: HEIGHT - 26, hidden: true }) };

  function show(place, pointed) {
    state.at = Math.max(0, Math.min(steps.length - 1, place));
    const step = steps[state.at];
    const values = series.map((each) => [each.name, (each.points.find((point) => point[0] === step) || [])[1]]).filter(([, value]) => value !== undefined);
    readout.textContent = `step ${number(step)}: ` + values.map(([name, value]) => (series.length > 1 ? visible(name) + " " : "") + short(value)).join(" · ");
    state.cursor.toggleAttribute("hidden", !pointed);
    if (state.scale) for (const end of ["x1", "x2"]) state.cursor.setAttribute(end, state.scale.x(step));
  }

  function draw() {
    const width = Math.max(240, figure.clientWidth);
    state.scale = scales(series, width, series.length > 1 ? 108 : 14, unit);
    drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    drawing.replaceChildren(...axes(state.scale), ...series.map((each, index) => drawnSeries(each, index, state.scale, smooth)), ...(series.length > 1 ? endLabels(series, state.scale) : []), state.cursor);
    show(state.at, false);
  }

  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * Math.max(240, figure.clientWidth);
    let nearest = 0;
    steps.forEach((step, place) => {
      if (Math.abs(state.scale.x(step) - x) < Math.abs(state.scale.x(steps[nearest]) - x)) nearest = place;
    });
    show(nearest, true);
  });
  drawing.addEventListener("pointerleave", () => show(steps.length - 1, false));
  drawing.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    show(state.at + move, true);
  });
  new ResizeObserver(draw).observe(figure);
  return figure;
}

// Rewards of a group on a line from the lowest to the highest: the more sessions have one, the higher its bar.
function strip(rewards, low, high) {
  const counts = new Map();
  for (const reward of rewards) if (reward !== null) counts.set(reward, (counts.get(reward) || 0) + 1);
  const most = Math.max(1, ...counts.values());
  const x = (reward) => 6 + 108 * ((reward - low) / (high - low || 1));
  const bars = [...counts].map(([reward, count]) => svg("rect", { x: x(reward) - 2.5, width: 5, y: 22 - (18 * count) / most, height: (18 * count) / most }));
  const label = counts.size ? "rewards " + [...counts].sort((a, b) => a[0] - b[0]).map(([reward, count]) => `${short(reward)} × ${count}`).join(", ") : "no rewards";
  return svg("svg", { class: "strip", viewBox: "0 0 120 26", role: "img", "aria-label": label }, svg("title", {}, label), svg("line", { x1: 2, x2: 118, y1: 23, y2: 23 }), bars);
}

// The same in words, where there are few different ones.
function rewardCounts(rewards) {
  const counts = new Map();
  for (const reward of rewards) if (reward !== null) counts.set(reward, (counts.get(reward) || 0) + 1);
  const shown = [...counts].sort((a, b) => a[0] - b[0]).slice(0, 4);
  return shown.map(([reward, count]) => `${count} × ${short(reward)}`).join(", ") + (counts.size > 4 ? ", …" : "");
}
