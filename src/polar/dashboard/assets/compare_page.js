// Puts the page of a comparison together.
const MOST_ROWS = 300;
const LIGHT_SIGNS = { exact: "● exact", inexact: "◐ not exact", wrong: "✕ disagree", none: "○ nothing to prove" };

function sideName(side) {
  const name = visible(side.session_id);
  return SERVED ? el("a", { href: "/sessions/" + encodeURIComponent(side.session_id) }, name) : name;
}

function numbersTable() {
  const facts = (side) => {
    const numbers = side.statistics;
    return {
      run: visible(side.run_id || "at a server"),
      builder: visible(side.builder) + (side.built_now ? ", built now" : ", as stored"),
      stage: side.stage,
      failure: visible(side.failure) || "–",
      reward: shownNumber(side.reward),
      tokens: LIGHT_SIGNS[side.light],
      calls: side.calls.toLocaleString("en"),
      traces: side.rows.length.toLocaleString("en"),
      "merge rate": shownNumber(numbers.merge_rate),
      "tokens in all traces": side.rows.reduce((sum, row) => sum + row.prompt + row.response, 0).toLocaleString("en"),
      "sampled tokens": (numbers.sampled_tokens ?? 0).toLocaleString("en"),
      "trainable tokens": side.rows.reduce((sum, row) => sum + row.trainable, 0).toLocaleString("en"),
      "dropped tokens": side.drops.reduce((sum, drop) => sum + drop[1], 0).toLocaleString("en"),
      breaks: side.breaks.length.toLocaleString("en"),
    };
  };
  const [left, right] = SIDES.map(facts);
  const rows = Object.keys(left).map((name) => el("tr", { class: left[name] === right[name] ? null : "other" }, el("th", {}, name), el("td", {}, left[name]), el("td", {}, right[name])));
  return el("table", { class: "numbers" }, el("thead", {}, el("tr", {}, el("th", {}), el("th", {}, "left: ", sideName(SIDES[0])), el("th", {}, "right: ", sideName(SIDES[1])))), el("tbody", {}, rows));
}

// A trace as a bar: what is given, trained and not trained on, from its first token to its last.
function rowBar(row, longest) {
  const bar = svg("svg", { class: "rowbar", viewBox: `0 0 ${longest} 10`, preserveAspectRatio: "none", "aria-hidden": "true" });
  let at = 0;
  for (const [size, kind] of row.kinds) {
    bar.append(svg("rect", { class: "use-" + KIND_CLASSES[kind], x: at, y: 0, width: size, height: 10 }));
    at += size;
  }
  return bar;
}

function rowList(side) {
  const { rows } = SIDES[side];
  const longest = Math.max(1, ...ROWS.map((row) => row.prompt + row.response));
  const items = rows.slice(0, MOST_ROWS).map((row, index) => {
    const numbers = `${row.prompt.toLocaleString("en")} + ${counted(row.response, "token")}, ${row.trainable.toLocaleString("en")} trainable`;
    const notes = [row.kind, numbers, `calls ${row.spans.map((span) => span[0]).slice(0, 12).join(", ")}${row.spans.length > 12 ? " …" : ""}`, row.reward === null ? null : "reward " + shownNumber(row.reward), row.exact ? null : "context not exact"];
    const button = el("button", { type: "button", "data-row": index, "aria-pressed": "false" }, el("b", {}, "trace " + index), " " + visible(notes.filter(Boolean).join(" · ")), rowBar(row, longest));
    button.addEventListener("click", () => chooseRow(side, index));
    return el("li", {}, button);
  });
  const more = rows.length > MOST_ROWS ? el("p", { class: "quiet" }, `and ${rows.length - MOST_ROWS} more`) : null;
  return el("div", { class: `rows side-${side}` }, items.length ? el("ol", {}, items) : el("p", { class: "quiet" }, "no traces"), more);
}

function lossList(side) {
  const { breaks, drops } = SIDES[side];
  const named = (number) => (number === null ? "a call" : "call " + number);
  const broken = breaks.map(([call, parent, reason]) => el("li", {}, el("b", {}, visible(reason)), `: ${named(call)}${parent === null ? "" : " after call " + parent}`));
  const byReason = new Map();
  for (const [call, size, reason] of drops) byReason.set(reason, [...(byReason.get(reason) || []), [call, size]]);
  const dropped = [...byReason].map(([reason, each]) => el("li", {}, el("b", {}, visible(reason)), `: ${counted(each.reduce((sum, drop) => sum + drop[1], 0), "token")} of ${counted(new Set(each.map((drop) => drop[0])).size, "call")}`));
  return el("div", {}, el("h3", {}, counted(broken.length, "break")), el("ul", {}, broken), el("h3", {}, "dropped"), dropped.length ? el("ul", {}, dropped) : el("p", { class: "quiet" }, "nothing"));
}

function comparisonBar() {
  const button = (id, words, key) => {
    const made = el("button", { type: "button", id, title: "key " + key }, words);
    made.addEventListener("click", () => KEYS[key][1]());
    return made;
  };
  const uses = [KIND.TRAINED, KIND.DROPPED, KIND.GIVEN].map((kind) => el("li", {}, el("span", { class: "t " + KIND_CLASSES[kind] }, "token"), " " + ["given", "trained", "sampled, not trained"][kind]));
  return el("div", { class: "bar" }, el("ul", { class: "legend" }, uses), el("output", { id: "outcome" }), el("span", { class: "steps" }, button("first", "first difference", "f"), " ", button("previous", "previous", "p"), " ", button("next", "next", "n")));
}

function drawComparison() {
  const [left, right] = SIDES;
  const chosen = (side) => ({ session: side.session_id, builder: side.built_now ? side.builder : "" });
  document.getElementById("page").append(
    el("header", { class: "top" }, el("h1", {}, left.session_id === right.session_id ? `${visible(left.session_id)}: two builders` : `${visible(left.session_id)} and ${visible(right.session_id)}`), VALUES.note ? el("p", { class: "note" }, visible(VALUES.note)) : null, compareForm(chosen(left), chosen(right)), numbersTable()),
    el("h2", {}, "Traces"),
    el("p", { class: "quiet" }, "Choose one of each side; their tokens stand below."),
    el("div", { class: "both" }, rowList(0), rowList(1)),
    el("details", { open: true }, el("summary", {}, "breaks and dropped tokens"), el("div", { class: "both" }, lossList(0), lossList(1))),
    comparisonBar(),
    el("div", { id: "aligned" }),
    el("footer", {}, "made by Polar " + visible(VALUES.made_by)),
    el("aside", { id: "inspector", hidden: true, "aria-label": "token" }),
  );
  const onToken = (event) => {
    const span = event.target.closest ? event.target.closest(".pair .t") : null;
    if (span) inspectPlace(span);
  };
  document.addEventListener("pointerover", onToken);
  document.addEventListener("click", onToken);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select") || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key][1]();
  });
  window.addEventListener("hashchange", followAddress);
  shownRows[1] = VALUES.partners[0] ?? 0;
  followAddress();
}

drawComparison();
