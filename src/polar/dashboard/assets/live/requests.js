// Requests to the server that this page came from. The browser adds the login's cookie.
const PAGE_HEADER = "x-polar-page";

class Refused extends Error {}

class Away extends Error {}

async function ask(method, path, body) {
  const headers = method === "GET" ? {} : { [PAGE_HEADER]: "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store" });
  } catch (error) {
    throw new Away("the server does not answer");
  }
  if (answer.ok) return answer.status === 204 ? null : answer.json();
  if (answer.status === 401 && location.pathname !== "/login") {
    location.assign("/login?next=" + encodeURIComponent(location.pathname + location.search));
    return new Promise(() => {}); // the page is leaving
  }
  const text = await answer.text();
  let detail = text.slice(0, 500);
  try {
    detail = JSON.parse(text).detail;
  } catch (error) {
    // a proxy answered with a page of its own
  }
  if (answer.status >= 502 && answer.status <= 504) throw new Away(String(detail));
  throw new Refused(String(detail || "the server answered with " + answer.status));
}

function read(path, query) {
  const given = Object.entries(query || {}).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  return ask("GET", text ? path + "?" + text : path);
}

// The scheme is the system's, or the one that was chosen with the switch in the frame.
function useTheme(theme) {
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function storedTheme() {
  try {
    return localStorage.getItem("polar-theme") || "system";
  } catch (error) {
    return "system"; // storage is switched off
  }
}

useTheme(storedTheme());
