// How a served page is led to a comparison.
const SERVED = location.protocol.startsWith("http");

function builderSelect(name, chosen) {
  const names = ["", ...VALUES.builders];
  return el("select", { "aria-label": name, id: name }, names.map((each) => el("option", { value: each, selected: each === chosen }, each || "as stored")));
}

// `sides`: session and builder of the left and the right, as they are shown now.
function compareForm(left, right) {
  if (!SERVED || !VALUES.builders.length) return null;
  const session = el("input", { id: "other", list: "others", value: right.session, "aria-label": "session to compare with", autocomplete: "off" });
  const ids = [...new Set([left.session, ...VALUES.others])];
  const [leftBuilder, rightBuilder] = [builderSelect("left-builder", left.builder), builderSelect("right-builder", right.builder)];
  const go = el("button", { type: "button", id: "compare" }, "compare");
  const follow = () => {
    const wanted = new URLSearchParams({ left: left.session, left_builder: leftBuilder.value, right: session.value, right_builder: rightBuilder.value });
    location.href = "/compare?" + wanted;
  };
  go.addEventListener("click", follow);
  session.addEventListener("keydown", (event) => event.key === "Enter" && follow());
  return el(
    "p",
    { class: "choice" },
    "Compare its traces ", leftBuilder, " with those of ", session, el("datalist", { id: "others" }, ids.map((id) => el("option", { value: id }))), " ", rightBuilder, " ", go,
  );
}
