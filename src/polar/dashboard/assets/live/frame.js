// What stands around every page: navigation, state of the policy, and the connection that tells when to look again.
const LINKS = [["/", "Overview"], ["/sessions", "Sessions"], ["/groups", "Groups"], ["/nodes", "Nodes"], ["/training", "Training"], ["/log", "Log"], ["/actions", "Actions"]];
const LEAST_PAUSE_MS = 1000; // between two refreshes, however many events come
const LONGEST_PAUSE_MS = 5000; // heartbeats of nodes are no events
const RETRY_MS = 2000;
const FRAME = { overview: null, draw: null, busy: false, again: false, last: 0, timer: null, events: null, cursor: -1 };

function drawFrame() {
  const here = "/" + location.pathname.split("/")[1];
  const links = LINKS.map(([address, name]) => el("a", { href: address, "aria-current": address === here ? "page" : null }, name));
  const theme = el("button", { type: "button", id: "theme" });
  const showTheme = () => {
    theme.textContent = { system: "◐", light: "☀", dark: "☾" }[storedTheme()];
    theme.title = "colours: " + storedTheme();
    theme.setAttribute("aria-label", theme.title);
  };
  theme.addEventListener("click", () => {
    const next = { system: "light", light: "dark", dark: "system" }[storedTheme()];
    localStorage.setItem("polar-theme", next);
    useTheme(next);
    showTheme();
  });
  showTheme();
  const leave = button("Log out", async () => {
    await ask("POST", "/logout");
    location.assign("/login");
  });
  const navigation = el("div", { class: "links", role: "navigation", "aria-label": "pages" }, links);
  document.body.prepend(
    el(
      "header",
      { class: "frame" },
      el("div", { class: "frameline" }, el("a", { class: "brand", href: "/" }, "Polar"), navigation, el("div", { class: "tools" }, el("div", { id: "policy" }), theme, leave)),
      el("p", { id: "away", role: "alert", hidden: true }),
    ),
  );
  const current = navigation.querySelector("[aria-current]");
  if (current) navigation.scrollLeft = current.offsetLeft - navigation.offsetLeft; // on a phone not all of them fit
}

function drawPolicy(policy) {
  const version = policy.version ? "policy " + policy.version : "no policy version";
  const title = counted(policy.updates, "weight update") + " so far";
  const state = policy.paused ? el("span", { class: "paused", id: "paused" }, "⏸ paused") : null;
  const act = policy.paused ? button("Resume", resumePolicy) : button("Pause", pausePolicy);
  return [el("span", { class: "version", title }, visible(version)), state, act];
}

// Registers how the page draws itself from a new overview, and begins.
function follow(draw) {
  FRAME.draw = draw;
  drawFrame();
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) closeEvents(); // a browser has few connections for all pages of a server
    else refreshSoon();
  });
  window.addEventListener("pagehide", closeEvents);
  refresh();
}

function closeEvents() {
  if (FRAME.events) FRAME.events.close();
  FRAME.events = null;
}

function openEvents() {
  closeEvents();
  FRAME.events = new EventSource("/v1/events?after=" + FRAME.overview.cursor);
  for (const kind of ["task", "stage", "result", "node", "policy"]) {
    FRAME.events.addEventListener(kind, (event) => {
      FRAME.cursor = Number(event.lastEventId);
      refreshSoon();
    });
  }
  FRAME.events.addEventListener("error", () => {
    closeEvents();
    refreshSoon(); // finds out whether the server is away, or the login has ended
  });
}

function refreshSoon(pause = 0) {
  FRAME.again = true;
  if (FRAME.busy) return;
  clearTimeout(FRAME.timer);
  FRAME.timer = setTimeout(refresh, Math.max(pause, FRAME.last + LEAST_PAUSE_MS - Date.now()));
}

// After something that the person did: at once.
function refreshNow() {
  FRAME.last = 0;
  refreshSoon();
}

async function refresh() {
  if (FRAME.busy) return;
  clearTimeout(FRAME.timer);
  FRAME.busy = true;
  FRAME.again = false;
  FRAME.last = Date.now();
  try {
    FRAME.overview = await read("/v1/overview");
    CLOCK.ahead = FRAME.overview.at - Date.now() / 1000;
    redraw(document.getElementById("policy"), FRAME.overview.policy, drawPolicy);
    await FRAME.draw(FRAME.overview);
    showAway("");
    if (!FRAME.events && !document.hidden) openEvents();
    document.body.dataset.ready = "1";
  } catch (error) {
    if (!(error instanceof Away || error instanceof Refused)) console.error(error);
    closeEvents();
    showAway(error instanceof Away ? "The server is away; trying again. What you see is from " + new Date(FRAME.last).toLocaleTimeString() + "." : error.message);
  } finally {
    FRAME.busy = false;
    clearTimeout(FRAME.timer);
    if (!document.hidden || FRAME.again) FRAME.timer = setTimeout(refresh, FRAME.again ? LEAST_PAUSE_MS : FRAME.events ? LONGEST_PAUSE_MS : RETRY_MS);
  }
}

function showAway(text) {
  const line = document.getElementById("away");
  line.hidden = !text;
  line.textContent = visible(text);
  document.body.classList.toggle("isaway", Boolean(text));
}
