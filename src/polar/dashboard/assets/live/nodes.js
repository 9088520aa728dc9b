// The gateway nodes: what each runs and can run, and why one takes nothing.
const NODES = el("div", { class: "cards", id: "nodes" });
const NOTHING = el("div", { id: "empty" });
const MOST_NAMES = 8;
const LONGEST_NAME = 60;
const OPENED = new Set();
const USE = el("p", { id: "use" });

function nodeState(node) {
  if (!node.alive) return ["bad", "✕ lost"];
  if (node.sick) return ["bad", "▲ sick"];
  return node.draining ? ["warn", "⇣ draining"] : ["good", "● well"];
}

// The first names, each short enough for a line, and how many there are besides.
function names(all) {
  const cut = (name) => (name.length > LONGEST_NAME ? name.slice(0, LONGEST_NAME - 1) + "…" : name);
  const rest = all.slice(MOST_NAMES);
  const more = rest.length ? el("span", { class: "quiet", title: visible(rest.map(cut).join(", ")) }, `and ${number(rest.length)} more`) : null;
  return [...all.slice(0, MOST_NAMES).map((name) => el("span", { class: "name" }, visible(cut(name)))), more];
}

function abilities(can) {
  if (!can) return el("p", { class: "warn small" }, "▲ Of an older Polar: it gets no sessions until it registers again.");
  const facts = { engine: [can.engine, can.model], runtimes: can.runtimes, harnesses: can.harnesses, labels: can.labels };
  const known = Object.entries(facts).map(([name, all]) => [name, all.filter(Boolean)]).filter(([, all]) => all.length);
  return el("dl", { class: "can" }, known.flatMap(([name, all]) => [el("dt", {}, name), el("dd", {}, names(all))]));
}

// A part that stays open when its card is made again, as it is with each heartbeat.
function keptOpen(name, summary, content) {
  const made = el("details", { open: OPENED.has(name) }, el("summary", {}, summary), content);
  made.addEventListener("toggle", () => (made.open ? OPENED.add(name) : OPENED.delete(name)));
  return made;
}

function nodeCard(node) {
  const [kind, word] = nodeState(node);
  const held = node.sessions.length ? keptOpen(node.node_id, counted(node.sessions.length, "session"), el("ul", {}, node.sessions.map((each) => el("li", {}, link(sessionAddress(each), each))))) : el("p", { class: "quiet" }, "no sessions");
  return el(
    "section",
    { class: "panel card", "data-node": node.node_id, "aria-label": visible(node.name) },
    el("div", { class: "cardhead" }, el("h2", {}, visible(node.name)), el("b", { class: kind }, word)),
    node.sick ? el("p", { class: "failure" }, visible(`${node.sick.part}: ${node.sick.why}`), " (for ", since(node.sick.since), ")") : null,
    el("p", {}, `${number(node.sessions.length)} held, ${counted(node.slots, "run slot")}, ${counted(node.generating, "generation")} under way`),
    meter(node.sessions.length, node.slots, "sessions held for each slot"),
    held,
    abilities(node.abilities),
    el("p", { class: "quiet small" }, visible(node.node_id), node.abilities && node.abilities.polar ? " · Polar " + visible(node.abilities.polar) : "", " · joined ", since(node.registered), " ago · heard of ", since(node.last_seen), " ago", node.heard ? "" : " · has not acknowledged the current policy"),
    el("p", { class: "buttons" }, link(sessionsWhere({ node_id: node.node_id }), "sessions"), node.draining ? button("Use again", () => drainNode(node, false)) : button("Drain", () => drainNode(node, true))),
  );
}

async function drawNodes(overview) {
  const { nodes, rate } = overview;
  USE.textContent = nodes.length ? `${number(overview.busy)} of ${counted(overview.slots, "run slot")} busy · ${short(rate.sampled_tokens_per_s)} sampled tokens/s · ${short(rate.calls_per_s)} calls/s · first token after ${lasted(rate.first_token_s)}` : "";
  redrawRows(NODES, nodes, (node) => node.node_id, nodeCard);
  redraw(NOTHING, nodes.length, (count) => (count ? [] : [teach("No gateway node is connected. Start one on any machine that has the node token and an engine:", "polar gateway --server " + location.origin)]));
}

document.getElementById("page").append(el("main", { class: "live" }, el("h1", {}, "Nodes"), USE, NODES, NOTHING));
follow(drawNodes);
