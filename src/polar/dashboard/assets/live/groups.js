// The groups, the newest first: whether their rewards differ, without which a group teaches nothing.
const GROUPS_PER_PAGE = 100;
const SUMMARY = el("div", { id: "contrast" });
const ROWS = el("tbody", { id: "rows" });
const MORE = el("p", { class: "pager" });
const NONE = el("div", { id: "empty" });
const FROM = () => new URLSearchParams(location.search).get("before");

function contrastMark(group) {
  if (group.unfinished) return el("span", { class: "quiet" }, `⋯ ${number(group.unfinished)} of ${number(group.sessions)} open`);
  return group.contrast ? el("span", { class: "good" }, "◆ differ") : el("span", { class: "warn" }, "◇ no contrast");
}

function groupRow([group, low, high]) {
  const missing = group.rewards.filter((reward) => reward === null).length;
  return el(
    "tr",
    { "data-group": group.group_id },
    el("td", {}, link(sessionsWhere({ group_id: group.group_id }), group.group_id)),
    el("td", {}, contrastMark(group)),
    el("td", {}, el("div", { class: "stripbox" }, strip(group.rewards, low, high), el("span", { class: "quiet small" }, rewardCounts(group.rewards)))),
    el("td", { class: "n wide" }, group.mean === null ? "–" : group.mean.toFixed(3)),
    el("td", { class: "n" }, group.spread === null ? "–" : group.spread.toFixed(3)),
    el("td", { class: "n wide" }, number(group.sessions)),
    el("td", { class: "n wide" }, missing ? number(missing) : ""),
    el("td", {}, group.unfinished ? button("Cancel", () => cancelGroup(group.group_id), "small") : null),
  );
}

function summary({ contrast }) {
  if (!contrast.groups) return el("p", { class: "quiet" }, "No group is finished yet.");
  return el("div", {}, el("p", {}, el("b", {}, percent(contrast.without_contrast, contrast.groups)), ` of the newest ${counted(contrast.groups, "finished group")} have no contrast; mean spread `, el("b", {}, contrast.mean_spread === null ? "–" : contrast.mean_spread.toFixed(3)), "."), el("div", { class: "narrow" }, meter(contrast.without_contrast, contrast.groups, "share without contrast")));
}

async function drawGroups(overview) {
  const page = await read("/v1/overview/groups", { before: FROM(), limit: GROUPS_PER_PAGE });
  const rewards = page.groups.flatMap((group) => group.rewards).filter((reward) => reward !== null);
  const low = Math.min(0, ...rewards);
  const high = Math.max(1, ...rewards);
  redraw(SUMMARY, { contrast: overview.contrast }, summary);
  redrawRows(ROWS, page.groups.map((group) => [group, low, high]), ([group]) => group.group_id, groupRow);
  redraw(MORE, { older: page.before, newest: FROM() !== null }, (at) => [at.newest ? link("/groups", "« newest") : null, at.older === null ? null : link("/groups?before=" + at.older, "older ›")]);
  redraw(NONE, page.groups.length, (count) => (count ? [] : [teach("No group yet. The sessions of a task form one; several tasks form one if they name the same group_id:", "polar submit tasks.toml --samples 8 --server " + location.origin)]));
}

document.getElementById("page").append(
  el("main", { class: "live" }, el("h1", {}, "Groups"), el("p", { class: "hint" }, "Rewards are compared within a group. One whose rewards are all equal gives no signal: its tasks are too easy or too hard."), SUMMARY, table([["group"], ["contrast"], ["rewards"], ["mean", "n wide"], ["spread", "n", "standard deviation"], ["sessions", "n wide"], ["no reward", "n wide", "no verdict, or infrastructure failed"], [""]], ROWS), NONE, MORE),
);
follow(drawGroups);
