// The drawing as a tree: modules contain modules and nodes, in the order of the forward pass.

const LONG = 90; // a module with more children is divided into parts
const PART = 40;

function buildTree(drawing) {
  const items = new Map();
  for (const data of drawing.modules) items.set(data.id, moduleItem(data));
  if (!items.size) items.set("root", moduleItem({ id: "root", path: "", name: "", parent: null }));
  const root = items.values().next().value;
  for (const item of items.values()) {
    if (item !== root) item.parent = items.get(item.data.parent) ?? root;
  }
  drawing.nodes.forEach((data, place) => {
    const parent = items.get(data.module) ?? root;
    const item = { id: data.id, kind: "node", data, parent, children: [], first: place };
    item.leaves = [item];
    items.set(data.id, item);
    for (let above = parent; above; above = above.parent) {
      above.first = Math.min(above.first, place);
      above.leaves.push(item);
    }
  });
  for (const item of items.values()) {
    if (item.parent && item.leaves.length) item.parent.children.push(item);
  }
  for (const item of [...items.values()]) arrange(item, items);
  return { items, root };
}

function moduleItem(data) {
  return {
    id: data.id,
    kind: "module",
    data,
    parent: null,
    children: [],
    leaves: [],
    first: Infinity,
  };
}

function arrange(item, items) {
  item.children.sort((a, b) => a.first - b.first);
  const runs = together(item.children);
  if (runs.length > LONG) item.children = parts(item, runs, items);
  item.children.forEach((child, place) => {
    child.place = place;
  });
}

// A block and the blocks folded onto it stay in one part.
function together(children) {
  const runs = [];
  for (const child of children) {
    if (child.data.repeat?.index > 0 && runs.length) runs.at(-1).push(child);
    else runs.push([child]);
  }
  return runs;
}

// Divides a long list without hierarchy (a functional model), which is too large to lay out or read.
function parts(item, runs, items) {
  const count = Math.ceil(runs.length / PART);
  const size = Math.ceil(runs.length / count);
  return Array.from({ length: count }, (_, index) => {
    const children = runs.slice(index * size, (index + 1) * size).flat();
    const part = moduleItem({
      id: `${item.id}/part${index}`,
      path: item.data.path,
      name: `part ${index + 1} of ${count}`,
      type: "",
      parameters: total(children),
      parent: item.id,
      repeat: null,
      part: true,
    });
    part.parent = item;
    part.children = children;
    part.leaves = children.flatMap((child) => child.leaves);
    part.first = children[0]?.first ?? Infinity;
    children.forEach((child, place) => {
      child.parent = part;
      child.place = place;
    });
    items.set(part.id, part);
    return part;
  }).filter((part) => part.children.length);
}

const total = (list) => list.reduce((sum, item) => sum + (item.data.parameters ?? 0), 0);

function ancestors(item) {
  const above = [];
  for (let parent = item.parent; parent; parent = parent.parent) above.push(parent);
  return above;
}
