// The overview: is it running, is it learning, what fails and why, what waits.
const HISTORY = 180;
const PANELS = {
  attention: panel("attention", "Needs attention"),
  waiting: panel("waiting", "Why sessions wait"),
  stages: panel("stages", "Stages", "Where the sessions are. Choose one to list them."),
  learning: panel("learning", "Learning"),
  failures: panel("failures", "Failures", "Of the newest results. Infrastructure failures count nowhere and run again where possible; those of the agent count as reward 0."),
  harnesses: panel("harnesses", "By harness", "Rows: traces per session; 1.0 if every session became one. Merge rate: calls that continue another's tokens, among those that could."),
  training: panel("trainable", "What can be trained on"),
  log: panel("logtail", "Log"),
};
const TILES = el("div", { class: "tiles", id: "tiles" });

// Values of the last minutes, as long as a tab is open: the server keeps no history of rates.
function remembered(overview) {
  let past = [];
  try {
    past = JSON.parse(sessionStorage.getItem("polar-rates") || "[]");
  } catch (error) {
    // storage is switched off, or has something else
  }
  past = past.filter((each) => Array.isArray(each) && each[0] < overview.at && each[0] > overview.at - 3600);
  past.push([overview.at, overview.rate.sampled_tokens_per_s, overview.busy, overview.stages.QUEUED || 0]);
  past = past.slice(-HISTORY);
  try {
    sessionStorage.setItem("polar-rates", JSON.stringify(past));
  } catch (error) {
    // then there is one point
  }
  return past;
}

function tile(name, value, lines, picture, address) {
  const head = address ? el("a", { href: address }, name) : name;
  return el("div", { class: "tile" }, el("p", { class: "tilename" }, head), el("p", { class: "tilevalue" }, value), picture, lines.filter(Boolean).map((line) => el("p", { class: "tileline" }, line)));
}

function drawTiles(overview) {
  const { rate, stages } = overview;
  const past = remembered(overview);
  const spark = (place, label) => sparkline(past.map((each) => each[place]), label);
  const queued = stages.QUEUED || 0;
  const well = overview.nodes.filter((node) => node.alive && !node.sick).length;
  const idle = overview.slots - overview.busy;
  const failed = overview.failures.reduce((sum, each) => sum + (each.agent ? 0 : each.count), 0);
  TILES.replaceChildren(
    tile("Run slots busy", `${number(overview.busy)} of ${number(overview.slots)}`, [`${well} of ${counted(overview.nodes.length, "node")} well`, idle > 0 && queued ? `${number(idle)} free although ${number(queued)} wait` : null], meter(overview.busy, overview.slots, "busy slots"), "/nodes"),
    tile("Waiting", number(queued), [overview.oldest_queued_s === null ? "nothing waits" : "the first since " + lasted(overview.oldest_queued_s), overview.ended_per_minute === null ? null : `${short(overview.ended_per_minute)} sessions end per minute`], spark(3, "waiting sessions in the last minutes"), "/sessions?stage=QUEUED"),
    tile("Sampled tokens/s", short(rate.sampled_tokens_per_s), [rate.over_s ? `${short(rate.prompt_tokens_per_s)} prompt tokens/s, ${short(rate.calls_per_s)} calls/s` : "no node has reported twice yet"], spark(1, "sampled tokens per second in the last minutes")),
    tile("Engine latency", lasted(rate.first_token_s), ["to the first token", `${lasted(rate.call_s)} to the last`, rate.failed_calls ? el("span", { class: "bad" }, `✕ ${counted(rate.failed_calls, "call")} failed`) : null]),
    tile("Infrastructure failures", overview.window ? percent(failed, overview.window) : "–", [`${number(failed)} of the newest ${counted(overview.window, "result")}`], meter(failed, overview.window, "share of infrastructure failures"), "/sessions?failed_by=infrastructure"),
  );
}

function attention(overview) {
  const lines = [];
  const waiting = overview.stages.QUEUED || 0;
  const add = (kind, ...content) => lines.push(el("li", { class: kind }, el("span", { class: "sign", "aria-hidden": "true" }, kind === "bad" ? "✕ " : "▲ "), content));
  if (overview.policy.paused) add("warn", "Generation is paused: model calls wait until it is resumed.");
  if (waiting && !overview.nodes.some((node) => node.alive)) add("bad", `${counted(waiting, "session")} wait, and no gateway node is connected. Start one: `, el("code", {}, "polar gateway --server " + location.origin));
  for (const node of overview.nodes) {
    if (!node.alive) add("bad", link("/nodes", node.name), " was last heard of ", since(node.last_seen), " ago.");
    else if (node.sick) add("bad", link("/nodes", node.name), ` takes no sessions: ${visible(node.sick.part)}: ${visible(node.sick.why)}`);
    else if (node.draining) add("warn", link("/nodes", node.name), ` is draining and still has ${counted(node.sessions.length, "session")}.`);
  }
  for (const stuck of overview.stuck) add("warn", link(sessionAddress(stuck.session_id), stuck.session_id), " seems stuck: " + visible(stuck.why));
  if (overview.contrast.groups >= 4 && overview.contrast.without_contrast / overview.contrast.groups > 0.7) add("warn", link("/groups", "Groups"), `: ${percent(overview.contrast.without_contrast, overview.contrast.groups)} of the newest have no contrast and teach nothing. The tasks may be too easy or too hard, or have too few samples.`);
  return lines.length ? el("ul", { class: "alerts" }, lines) : el("p", { class: "good" }, "✓ Nothing.");
}

function waitReasons({ waiting }) {
  const row = (each) => el("tr", {}, el("td", {}, visible(each.why)), el("td", { class: "n" }, number(each.sessions)), el("td", {}, link(sessionsWhere({ task_id: each.task_id, stage: "QUEUED" }), each.task_id)));
  return table([["reason"], ["sessions", "n"], ["first task"]], el("tbody", {}, waiting.map(row)));
}

function stageFlow({ stages }) {
  const box = (stage) => el("a", { class: "stagebox " + stage, href: sessionsWhere({ stage }), "data-stage": stage }, el("b", {}, number(stages[stage] || 0)), stageMark(stage));
  const total = Object.values(stages).reduce((sum, each) => sum + each, 0);
  if (!total) return teach("No task has been submitted yet. Submit a task file from any machine that has the control token:", "polar submit tasks.toml --server " + location.origin);
  return [el("div", { class: "flow" }, STAGES.map(box)), el("div", { class: "flow ends" }, ENDS.map(box))];
}

function failureRows(failures, agent) {
  const chosen = failures.filter((each) => each.agent === agent);
  if (!chosen.length) return el("p", { class: "quiet" }, "none");
  const most = Math.max(...chosen.map((each) => each.count));
  const row = (each) => el("tr", {}, el("td", {}, link(sessionsWhere({ failed_by: agent ? "agent" : "infrastructure", failure_type: each.type }), each.type), el("span", { class: "quiet" }, " in " + visible(each.where))), el("td", { class: "n" }, number(each.count)), el("td", { class: "bar" }, meter(each.count, most, "")), el("td", {}, link(sessionAddress(each.session_id), "newest")));
  return table([["what"], ["sessions", "n"], [""], [""]], el("tbody", {}, chosen.map(row)));
}

function failures(overview) {
  const half = (title, agent) => el("div", { "data-cause": agent ? "agent" : "infrastructure" }, el("h3", {}, title), failureRows(overview.failures, agent));
  return el("div", { class: "halves" }, half("Infrastructure: ours to repair", false), half("Agent: the policy's own, reward 0", true));
}

function harnessTable({ harnesses }) {
  if (!harnesses.length) return el("p", { class: "quiet" }, "No session has ended yet.");
  const row = (each) => el("tr", {}, el("td", {}, link(sessionsWhere({ harness: each.harness }), each.harness)), [number(each.sessions), percent(each.trainable, each.sessions), each.mean_reward === null ? "–" : each.mean_reward.toFixed(3), short(each.calls_per_session), short(each.rows_per_session), each.merge_rate === null ? "–" : Math.round(100 * each.merge_rate) + " %", short(each.sampled_tokens), lasted(each.run_s)].map((text) => el("td", { class: "n" }, text)));
  return table([["harness"], ["sessions", "n"], ["trainable", "n"], ["mean reward", "n", "over sessions with a reward"], ["calls", "n", "per session"], ["rows", "n", "traces per session"], ["merge rate", "n"], ["sampled", "n", "tokens"], ["run time", "n", "mean time in RUNNING"]], el("tbody", {}, harnesses.map(row)));
}

function trainable({ contrast, untrainable, policy_updates, stale, window }) {
  const contrastText = contrast.groups ? `${percent(contrast.without_contrast, contrast.groups)} of the newest ${counted(contrast.groups, "group")} have no contrast; mean spread of rewards ${contrast.mean_spread === null ? "–" : contrast.mean_spread.toFixed(3)}` : "No group is finished.";
  const reasons = Object.entries(untrainable).filter(([reason]) => reason);
  const left = reasons.length ? table([["not trained on because"], ["sessions", "n"]], el("tbody", {}, reasons.map(([reason, count]) => el("tr", {}, el("td", {}, link(sessionsWhere({ untrainable: reason }), reason.replaceAll("_", " "))), el("td", { class: "n" }, number(count)))))) : el("p", { class: "quiet" }, window ? "Every session of the newest results can be trained on." : "No result yet.");
  const most = Math.max(1, ...Object.values(policy_updates));
  const ages = Object.entries(policy_updates).map(([updates, count]) => el("tr", {}, el("td", {}, counted(Number(updates), "update")), el("td", { class: "n" }, number(count)), el("td", { class: "bar" }, meter(count, most, ""))));
  const right = ages.length ? table([["weights changed under a session"], ["sessions", "n"], [""]], el("tbody", {}, ages)) : el("p", { class: "quiet" }, "No session with calls yet.");
  return [el("p", {}, link("/groups", "Groups"), ": " + contrastText), el("div", { class: "halves" }, el("div", {}, left), el("div", {}, right, el("p", { class: "quiet" }, stale ? `${number(stale)} were too stale for their task` : "none too stale for its task")))];
}

function learning({ run, points }) {
  if (!run) return teach("No trainer has reported yet. polar train does so by itself; another trainer sends its curves with client.report_training, docs/trainers.md.", "");
  const made = [el("p", {}, link("/training?run=" + encodeURIComponent(run.run_id), run.run_id), ` at step ${number(run.last_step)}, last heard of `, since(run.updated), " ago")];
  const wanted = [["train", "training reward"], ["eval", "evaluation reward"]];
  const charts = wanted.map(([phase, title]) => {
    const chosen = points.filter((point) => point.phase === phase);
    const name = rewardName(chosen);
    return name ? lineChart(`${title} (${name})`, [{ name: run.run_id, points: curve(chosen, name) }], { smooth: phase === "train", unit: true }) : null;
  });
  return [...made, el("div", { class: "charts" }, charts)];
}

function logLines({ lines }) {
  return lines.length ? el("ol", { class: "log" }, lines.slice(-12).map(logLine)) : el("p", { class: "quiet" }, "No line yet.");
}

async function drawOverview(overview) {
  const [runs, log] = await Promise.all([read("/v1/training", { limit: 1 }), readLog()]);
  const points = runs.length ? await pointsOf(runs[0].run_id) : [];
  drawTiles(overview);
  redraw(PANELS.attention.body, { policy: overview.policy, stages: overview.stages, nodes: overview.nodes.map(({ node_id, name, alive, sick, draining, sessions, last_seen }) => ({ node_id, name, alive, sick, draining, sessions, last_seen: alive ? 0 : last_seen })), stuck: overview.stuck, contrast: overview.contrast }, attention);
  PANELS.waiting.section.hidden = !overview.waiting.length;
  redraw(PANELS.waiting.body, { waiting: overview.waiting }, waitReasons);
  redraw(PANELS.stages.body, { stages: overview.stages }, stageFlow);
  redraw(PANELS.learning.body, { run: runs[0] || null, points }, learning);
  redraw(PANELS.failures.body, { failures: overview.failures }, failures);
  redraw(PANELS.harnesses.body, { harnesses: overview.harnesses }, harnessTable);
  redraw(PANELS.training.body, { contrast: overview.contrast, untrainable: overview.untrainable, policy_updates: overview.policy_updates, stale: overview.stale, window: overview.window }, trainable);
  redraw(PANELS.log.body, { lines: log.lines }, logLines);
}

document.getElementById("page").append(
  el("main", { class: "live" }, el("h1", { class: "unseen" }, "Overview"), TILES, PANELS.attention.section, PANELS.waiting.section, PANELS.stages.section, PANELS.learning.section, PANELS.failures.section, PANELS.training.section, PANELS.harnesses.section, PANELS.log.section),
);
follow(drawOverview);
