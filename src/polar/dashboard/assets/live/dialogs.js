// What a person may do, each after a dialog that says what will happen. A refusal of the server stands in the dialog.
function confirmed({ title, text, yes, act, danger }) {
  const problem = el("p", { class: "failure", role: "alert" });
  const go = el("button", { type: "button", class: danger ? "danger" : "primary", id: "yes" }, yes);
  const stay = el("button", { type: "button", id: "no" }, "Keep as it is");
  const dialog = el("dialog", { class: "confirm", "aria-label": title }, el("h2", {}, visible(title)), text.map((line) => el("p", {}, visible(line))), problem, el("p", { class: "buttons" }, stay, go));
  document.body.append(dialog);
  stay.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  go.addEventListener("click", async () => {
    go.disabled = true;
    try {
      await act();
      dialog.close();
      refreshSoon();
    } catch (error) {
      problem.textContent = visible(error.message);
      go.disabled = false;
    }
  });
  dialog.showModal();
  stay.focus();
}

function button(name, act, kind) {
  const made = el("button", { type: "button", class: kind || null }, name);
  made.addEventListener("click", act);
  return made;
}

function cancelSession(sessionId) {
  confirmed({
    title: "Cancel session " + sessionId + "?",
    text: ["If it waits, it ends at once. If it runs, its node stops it at the next heartbeat and uploads what was captured so far.", "It gets no reward and is not trained on. This cannot be taken back."],
    yes: "Cancel the session",
    danger: true,
    act: () => ask("POST", "/v1/sessions/" + encodeURIComponent(sessionId) + "/cancel"),
  });
}

function cancelTask(taskId) {
  confirmed({
    title: "Cancel task " + taskId + "?",
    text: ["Every session of the task that has no result is cancelled; results that exist stay.", "This cannot be taken back."],
    yes: "Cancel the task",
    danger: true,
    act: () => ask("POST", "/v1/tasks/" + encodeURIComponent(taskId) + "/cancel"),
  });
}

function cancelGroup(groupId) {
  confirmed({
    title: "Cancel group " + groupId + "?",
    text: ["Every session of the group that has no result is cancelled; results that exist stay.", "A trainer that waits for the whole group gets it with fewer rewards. This cannot be taken back."],
    yes: "Cancel the group",
    danger: true,
    act: () => ask("POST", "/v1/groups/" + encodeURIComponent(groupId) + "/cancel"),
  });
}

function pausePolicy() {
  confirmed({
    title: "Pause generation?",
    text: ["Generations that are under way end. New model calls wait in the gateways, and time spent waiting does not count against a session's budget.", "Nothing is lost. A trainer that updates its weights pauses and resumes by itself: look whether one is at it."],
    yes: "Pause",
    act: () => ask("PUT", "/v1/policy", { paused: true }),
  });
}

function resumePolicy() {
  confirmed({
    title: "Resume generation?",
    text: ["Calls that wait in the gateways go on at once.", "If a trainer has paused to load new weights, resuming under it mixes old and new weights: look whether one is at it."],
    yes: "Resume",
    act: () => ask("PUT", "/v1/policy", { paused: false }),
  });
}

function drainNode(node, draining) {
  const path = "/v1/nodes/" + encodeURIComponent(node.node_id) + "/drain";
  confirmed({
    title: (draining ? "Drain node " : "Use node ") + node.name + (draining ? "?" : " again?"),
    text: draining ? [`It gets no more sessions. The ${counted(node.sessions.length, "session")} that it has end as usual.`, "It stays connected; you can take this back."] : ["It gets sessions again."],
    yes: draining ? "Drain" : "Use again",
    act: () => ask("POST", path, { draining }),
  });
}
