// Elements that are filled when they come near the window, and emptied when they are far from it again.
const MARGIN_PX = 900;
const FRAME_MS = 5; // spent on filling within one frame
const WAITING = new Set();
const NEAR = new IntersectionObserver(noticed, { rootMargin: MARGIN_PX + "px 0px" });
let asked = false;
let lastTop = 0;

// `fill` returns the children; `height` is a guess in pixels until then.
function filledWhenNear(element, fill, height) {
  element.fill = fill;
  element.style.minHeight = height + "px";
  NEAR.observe(element);
  return element;
}

function fillNow(element) {
  WAITING.delete(element);
  if (element.isFull) return;
  element.isFull = true;
  element.style.minHeight = "";
  element.replaceChildren(element.fill());
}

// What the reader has opened or stands in stays.
function emptied(element, height) {
  if (!element.isFull || element.kept || !height || element.contains(document.activeElement)) return;
  element.isFull = false;
  element.style.minHeight = height + "px";
  element.replaceChildren();
}

function noticed(entries) {
  for (const entry of entries) {
    if (entry.isIntersecting && !entry.target.isFull) WAITING.add(entry.target);
    if (!entry.isIntersecting) {
      WAITING.delete(entry.target);
      emptied(entry.target, entry.boundingClientRect.height);
    }
  }
  fillSoon();
}

function fillSoon() {
  if (asked || !WAITING.size) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    fillSome();
    fillSoon();
  });
}

// Nothing while the window leaps from place to place: it would be gone before anybody sees it.
function fillSome() {
  const leapt = Math.abs(scrollY - lastTop) > innerHeight;
  lastTop = scrollY;
  if (leapt) return;
  const started = performance.now();
  for (const element of nearestFirst()) {
    fillNow(element);
    if (performance.now() - started > FRAME_MS) return;
  }
}

function nearestFirst() {
  const distances = new Map();
  for (const element of WAITING) {
    const { top, bottom } = element.getBoundingClientRect();
    distances.set(element, Math.max(0, top - innerHeight, -bottom));
  }
  return [...distances.keys()].sort((one, other) => distances.get(one) - distances.get(other));
}

// Scrolls to an element, and again while what is filled around it moves it.
function showAt(element, options) {
  element.scrollIntoView(options);
  let top = element.getBoundingClientRect().top;
  let frames = 0;
  const settle = () => {
    if (!element.isConnected || frames++ > 12) return;
    const now = element.getBoundingClientRect().top;
    if (Math.abs(now - top) > 1) {
      element.scrollIntoView(options);
      top = element.getBoundingClientRect().top;
    }
    settling = requestAnimationFrame(settle);
  };
  cancelAnimationFrame(settling);
  settling = requestAnimationFrame(settle);
}

// A reader who scrolls meanwhile is not pulled back.
let settling = 0;
for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) {
  document.addEventListener(kind, () => cancelAnimationFrame(settling), { passive: true, capture: true });
}
