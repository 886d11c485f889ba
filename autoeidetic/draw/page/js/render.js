// The picture: frames below, then edges, boxes on top. Unchanged elements are reused.

const graph = byId("graph");
const layers = Object.fromEntries(
  ["frames", "lines", "headings", "faces"].map((name) => [name, svg("g", { class: name })]),
);
const world = svg("g", { id: "world" }, layers.frames, layers.lines, layers.headings, layers.faces);
const SMOOTH = 700; // up to this many boxes, all are animated and get their texts at once

let view = null;
let geometry = null;
let turn = 0;
const drawn = new Map(); // boxes and headings by item
const frames = new Map(); // the backgrounds of open modules

graph.append(svg("defs", {}, hatching("hatch", 2), hatching("zeroes", 1)), world);

function hatching(id, width) {
  return svg(
    "pattern",
    { id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("rect", { class: "hatch-ground", width: 7, height: 7 }),
    svg("rect", { class: `${id}-line`, width, height: 7 }),
  );
}

// Draws the current state; false if a newer request came in between.
async function refresh(layout = layoutView) {
  if (!(await arrangeView(layout))) return false;
  paint();
  return true;
}

async function arrangeView(layout) {
  turn += 1;
  const mine = turn;
  const next = buildView();
  const later = setTimeout(() => progress("Laying out the modules"), 250);
  try {
    const placed = await layout(next, (done, all) => {
      if (mine === turn && !byId("progress").hidden)
        progress(`Laying out modules: ${done} of ${all}`);
    });
    if (mine !== turn) return false;
    [view, geometry] = [next, placed];
    return true;
  } finally {
    clearTimeout(later);
    if (mine === turn) progress("");
  }
}

function progress(message) {
  byId("progress").textContent = message;
  byId("progress").hidden = !message;
}

function paint() {
  graph.classList.toggle("still", !drawn.size || geometry.boxes.size > SMOOTH);
  paintBoxes();
  layers.lines.replaceChildren(
    ...geometry.lines.map((entry) => {
      entry.element = drawSegment(entry);
      return entry.element;
    }),
  );
  showTask();
  drawMinimap();
  highlight();
}

function paintBoxes() {
  const spots = [...geometry.boxes.values()].sort(
    (a, b) => a.item.first - b.item.first || a.depth - b.depth,
  );
  const open = spots.filter(({ item }) => isOpen(view, item));
  const closed = spots.filter(({ item }) => !isOpen(view, item));
  replace(
    layers.frames,
    open.map((spot) => keep(frames, spot, drawFrame)),
  );
  replace(
    layers.headings,
    open.map((spot) => keep(drawn, spot, drawHeading)),
  );
  replace(
    layers.faces,
    closed.map((spot) => keep(drawn, spot, drawBox)),
  );
  dress(closed.length <= SMOOTH);
  for (const id of drawn.keys()) if (!geometry.boxes.has(id)) drawn.delete(id);
  roving();
}

// Elements that stay in the document keep their animations; only new ones are inserted.
function replace(layer, elements) {
  const staying = new Set(elements);
  for (const child of [...layer.children]) if (!staying.has(child)) child.remove();
  let before = null;
  for (const element of elements) {
    const expected = before ? before.nextSibling : layer.firstChild;
    if (element !== expected) layer.insertBefore(element, expected);
    before = element;
  }
}

function keep(known, spot, draw) {
  const { item } = spot;
  const stands = view.stands.get(item.id)?.length ?? "open";
  const key = [spot.w, spot.h, foldCount(item), stands].join("|");
  if (known.get(item.id)?.key !== key)
    known.set(item.id, { key, element: draw(spot), dressed: draw !== drawBox });
  const { element } = known.get(item.id);
  place(element, spot);
  return element;
}

// Adds texts to all boxes, or to the visible ones when the zoom makes them readable.
function dress(all) {
  if (!all && graph.dataset.level === "far") return;
  for (const [id, entry] of drawn) {
    const spot = geometry.boxes.get(id);
    if (entry.dressed || !(all || inSight(spot))) continue;
    entry.dressed = true;
    dressBox(entry.element, spot);
    entry.element.querySelectorAll(".bar").forEach(showBar);
  }
}

const place = (element, { x, y }) =>
  element.style.setProperty("transform", `translate(${x}px, ${y}px)`);

function repaintColours() {
  paintStripes(layers.faces);
  for (const line of layers.lines.children) {
    const group = line.getAttribute("data-group");
    if (group) line.style.setProperty("--group", groupColour(group));
  }
  showTask();
  drawMinimap();
}
