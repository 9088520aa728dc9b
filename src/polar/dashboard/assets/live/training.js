// The curves that trainers report. Evaluation has charts of its own: it is never drawn with the training reward.
const MOST_RUNS = 6;
const CHOICE = el("div", { id: "runs" });
const TRAIN = panel("train", "Training", "On the tasks that are trained on.");
const EVAL = panel("eval", "Evaluation", "On tasks that are held out. Not comparable with the training reward.");
const NO_RUN = el("div", { id: "empty" });
const STATE = { runs: [], smooth: true };

function chosenRuns(runs) {
  const known = new Set(runs.map((run) => run.run_id));
  const named = new URLSearchParams(location.search).getAll("run").filter((each) => known.has(each));
  return (named.length ? named : runs.slice(0, 1).map((run) => run.run_id)).slice(0, MOST_RUNS);
}

function toggleRun(runId, wanted) {
  const now = chosenRuns(STATE.runs).filter((each) => each !== runId);
  if (wanted) now.push(runId);
  history.replaceState(null, "", "/training?" + new URLSearchParams(now.map((each) => ["run", each])).toString());
  refreshNow();
}

function runChoice({ runs, chosen }) {
  const item = (run) => {
    const box = el("input", { type: "checkbox", value: run.run_id });
    box.checked = chosen.includes(run.run_id);
    box.disabled = !box.checked && chosen.length >= MOST_RUNS;
    box.addEventListener("change", () => toggleRun(run.run_id, box.checked));
    return el("label", { class: "run" }, box, " ", el("b", {}, visible(run.run_id)), el("span", { class: "quiet" }, ` step ${number(run.last_step)}, updated `, since(run.updated), " ago"));
  };
  const smooth = el("input", { type: "checkbox", id: "smooth" });
  smooth.checked = STATE.smooth;
  smooth.addEventListener("change", () => {
    STATE.smooth = smooth.checked;
    refreshNow();
  });
  return [el("fieldset", {}, el("legend", {}, `Runs (compare up to ${MOST_RUNS})`), runs.map(item)), el("label", { class: "run" }, smooth, " smooth training curves")];
}

function charts(curves, phase) {
  const points = curves.flatMap((each) => each.points.filter((point) => point.phase === phase));
  const names = metricNames(points);
  if (!names.length) return el("p", { class: "quiet" }, "nothing reported");
  const chart = (name) => {
    const series = curves.map((each) => ({ name: each.run_id, points: curve(each.points.filter((point) => point.phase === phase), name) })).filter((each) => each.points.length);
    return lineChart((phase === "eval" ? "evaluation " : "") + name, series, { smooth: phase === "train" && STATE.smooth, unit: rank(name) < 4 });
  };
  const shown = names.filter((name) => rank(name) < 8);
  const first = shown.length ? names.slice(0, Math.max(4, shown.length)) : names.slice(0, 6);
  const rest = names.slice(first.length);
  const more = rest.length ? el("details", { class: "morecharts" }, el("summary", {}, counted(rest.length, "more metric"))) : null;
  if (more) more.addEventListener("toggle", () => more.open && more.children.length === 1 && more.append(el("div", { class: "charts" }, rest.map(chart))));
  return [el("div", { class: "charts" }, first.map(chart)), ...(more ? [more] : [])];
}

async function drawTraining() {
  const runs = await read("/v1/training");
  STATE.runs = runs;
  const chosen = chosenRuns(runs);
  const curves = await Promise.all(chosen.map(async (run_id) => ({ run_id, points: await pointsOf(run_id) })));
  for (const part of [TRAIN, EVAL]) part.section.hidden = !runs.length;
  redraw(NO_RUN, runs.length, (count) => (count ? [] : [teach("No trainer has reported to this server. polar train does so by itself:", "polar train --server " + location.origin), el("p", {}, "Another trainer sends its curves with one call:"), el("pre", {}, 'await client.report_training("my-run", [TrainingPoint(step=1, metrics={"reward": 0.25})])')]));
  redraw(CHOICE, { runs, chosen }, (values) => (values.runs.length ? runChoice(values) : []));
  redraw(EVAL.body, { curves, phase: "eval" }, (values) => charts(values.curves, "eval"));
  redraw(TRAIN.body, { curves, phase: "train", smooth: STATE.smooth }, (values) => charts(values.curves, "train"));
}

document.getElementById("page").append(el("main", { class: "live" }, el("h1", {}, "Training"), CHOICE, TRAIN.section, EVAL.section, NO_RUN));
follow(drawTraining);
