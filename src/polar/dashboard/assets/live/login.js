// The login page. The token goes into the body of one request, and nowhere else.
const wanted = new URLSearchParams(location.search).get("next") || "/";

function goOn() {
  location.replace("/login?next=" + encodeURIComponent(wanted)); // the server checks the address, and leads there
}

function drawLogin() {
  const field = el("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", required: true, maxlength: 1000, spellcheck: "false" });
  const button = el("button", { type: "submit", class: "primary" }, "Log in");
  const problem = el("p", { class: "failure", id: "problem", role: "alert" });
  const user = el("input", { type: "text", name: "username", autocomplete: "username", value: "polar", hidden: true }); // for password managers
  const form = el("form", {}, user, el("label", { for: "token" }, "Control token"), field, button, problem);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    problem.textContent = "";
    try {
      await ask("POST", "/login", { token: field.value.trim() });
      goOn();
    } catch (error) {
      problem.textContent = visible(error.message);
      field.select();
    } finally {
      button.disabled = false;
    }
  });
  document.getElementById("page").append(
    el(
      "main",
      { class: "login" },
      el("h1", {}, "Polar"),
      el("p", {}, "This server asks for its control token."),
      form,
      el("p", { class: "quiet" }, "On the machine where the server was started, by the same user:"),
      el("pre", {}, "cat ~/.config/polar/control-token"),
      el("p", { class: "quiet" }, "The server printed the folder when it started. A token in POLAR_CONTROL_TOKEN wins over the file."),
    ),
  );
  field.focus();
}

// A link on another site leads here without the cookie, although the browser has it.
async function logIn() {
  const answer = await fetch(location.href, { redirect: "manual", cache: "no-store" });
  if (answer.type === "opaqueredirect") goOn();
  else drawLogin();
}

logIn();
