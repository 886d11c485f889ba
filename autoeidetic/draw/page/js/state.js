// The drawing and the reader's choices; everything on the page is derived from these.

const drawing = JSON.parse(byId("drawing").textContent);
for (const key of ["modules", "nodes", "edges", "groups", "tasks"]) drawing[key] ??= [];

const state = {
  theme: "light",
  expanded: new Set(),
  unfolded: new Set(),
  selected: null, // {kind: "item" | "group", id}
  task: drawing.tasks.length, // number of tasks learned at the moment that is shown
};

// For a drawing of what leaves with a task: [units, all units, parameters, all parameters] of each
// layer, and the nodes of which nothing leaves.
const leaving = drawing.ownership?.leaving ?? null;
const gone = new Set(leaving?.gone);

const { items, root } = buildTree(drawing);
const groups = new Map(drawing.groups.map((group) => [group.id, group]));
const ranks = rankGroups(drawing.groups);

const visibleChildren = (item) => item.children.filter((child) => !isFoldedAway(child));

const itemName = (item) => item.data.path || item.data.name || item.data.label || drawing.title;

// Opens whole levels up to `few` boxes, then one example of every kind of block up to `many`.
function openAtFirst(few, many) {
  state.expanded.clear();
  let boxes = 1;
  let level = [root];
  const cost = (modules) => modules.reduce((sum, item) => sum + visibleChildren(item).length, 0);
  const isRoot = (modules) => modules[0] === root;
  while (level.length && (isRoot(level) || boxes + cost(level) <= few)) {
    boxes += cost(level);
    for (const item of level) state.expanded.add(item.id);
    level = level.flatMap(visibleChildren).filter((item) => item.kind === "module");
  }
  openExamples(level, boxes, many);
}

function openExamples(queue, boxes, many) {
  const seen = new Set();
  while (queue.length) {
    const item = queue.shift();
    const inner = visibleChildren(item);
    if (seen.has(item.data.type) || boxes + inner.length > many) continue;
    seen.add(item.data.type);
    state.expanded.add(item.id);
    boxes += inner.length;
    queue.unshift(...inner.filter((child) => child.kind === "module"));
  }
}
