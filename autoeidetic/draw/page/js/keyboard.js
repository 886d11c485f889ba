// All boxes together are one Tab stop; arrow keys move between them by position.

const ARROWS = {
  ArrowUp: { x: 0, y: -1 },
  ArrowDown: { x: 0, y: 1 },
  ArrowLeft: { x: -1, y: 0 },
  ArrowRight: { x: 1, y: 0 },
};
const KEYS = [
  ["/", "search"],
  ["Arrows", "move between boxes"],
  ["Enter", "open or close a module"],
  ["u", "unfold or fold equal blocks"],
  ["Space", "select"],
  ["Esc", "clear the selection"],
  ["+ and −", "zoom"],
  ["0 or f", "fit everything"],
  ["e and c", "open or close one level"],
  ["[ and ]", "previous and next task"],
  ["d", "light or dark"],
  ["?", "this help"],
];

// Exactly one box can be reached by Tab: the one that had the focus last.
let cursor = null;

function roving() {
  if (!drawn.has(cursor)) cursor = layers.faces.firstChild?.getAttribute("data-id") ?? null;
  for (const [id, { element }] of drawn) element.setAttribute("tabindex", id === cursor ? 0 : -1);
}

function focusBox(id) {
  cursor = id;
  roving();
  drawn.get(id)?.element.focus({ preventScroll: true });
}

// The nearest box in a direction; sideways distance counts double.
function neighbour(id, { x, y }) {
  const middle = (box) => ({ x: box.x + box.w / 2, y: box.y + Math.min(box.h, 60) / 2 });
  const here = middle(geometry.boxes.get(id));
  let [found, least] = [null, Infinity];
  for (const [other, box] of geometry.boxes) {
    const there = middle(box);
    const along = (there.x - here.x) * x + (there.y - here.y) * y;
    const aside = Math.abs((there.x - here.x) * y) + Math.abs((there.y - here.y) * x);
    if (other !== id && along > 1 && along + 2 * aside < least)
      [found, least] = [other, along + 2 * aside];
  }
  return found;
}

function move(direction) {
  const from = drawn.has(cursor) ? cursor : null;
  const next = from ? neighbour(from, direction) : layers.faces.firstChild?.getAttribute("data-id");
  if (!next) return;
  focusBox(next);
  ensureVisible(next);
  select({ kind: "item", id: next });
}

const COMMANDS = {
  "/": () => {
    query.focus();
    query.select();
  },
  "+": () => zoomBy(1.3),
  "=": () => zoomBy(1.3),
  "-": () => zoomBy(1 / 1.3),
  0: fit,
  f: fit,
  e: () => changeLevel(true),
  c: () => changeLevel(false),
  d: () => switchTheme(),
  "?": () => byId("help").showModal(),
  Escape: () => select(null),
  "[": () => drawing.tasks.length && setTask(state.task - 1),
  "]": () => drawing.tasks.length && setTask(state.task + 1),
};

function onBox(key, id) {
  const item = items.get(id);
  if (key === "Enter" && item.kind === "module") toggle(id);
  else if (key === "Enter" || key === " ") select({ kind: "item", id });
  else if (key === "u") unfoldAround(item);
  else return false;
  return true;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  const { target, key } = event;
  if (target.closest?.("input, textarea, select")) return;
  const box = target.closest?.(".box");
  const inPanel = target.closest?.("#panel, #bar, #corner, #timeline, #legend, #banner");
  if (key in ARROWS && !inPanel) move(ARROWS[key]);
  else if (box && onBox(key, box.getAttribute("data-id"))) {
    /* done */
  } else if (key in COMMANDS) COMMANDS[key]();
  else return;
  event.preventDefault();
});

graph.addEventListener("focusin", (event) => {
  const box = event.target.closest(".box");
  if (box) cursor = box.getAttribute("data-id");
});

function buildHelp() {
  byId("help").append(
    html("h2", { id: "help-title" }, "Keys"),
    html(
      "dl",
      {},
      KEYS.flatMap(([key, meaning]) => [
        html("dt", {}, html("kbd", {}, key)),
        html("dd", {}, meaning),
      ]),
    ),
    html(
      "p",
      {},
      "Wheel or pinch zooms, dragging moves. Double-click opens and closes a module; its × badge unfolds equal blocks.",
    ),
    html(
      "p",
      { class: "small" },
      "Layout by elkjs, Eclipse Public License 2.0, github.com/kieler/elkjs.",
    ),
    html("form", { method: "dialog" }, html("button", { class: "action" }, "Close")),
  );
}
