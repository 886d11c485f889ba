// The visible parts for the current choices: open modules (scopes), their boxes, and the segments of
// edges in each. An edge crosses the border of an open module through a port.

function buildView() {
  const view = { scopes: new Map(), boxes: new Map(), stands: new Map(), seen: new Map() };
  openScope(view, root);
  for (const leaf of root.leaves) {
    view.stands.get(shownAs(view, leaf).id).push(leaf);
  }
  for (const edge of drawing.edges) route(view, edge);
  return view;
}

function openScope(view, item) {
  const scope = { item, boxes: visibleChildren(item), segments: new Map(), ports: new Map() };
  view.scopes.set(item.id, scope);
  for (const box of scope.boxes) {
    view.boxes.set(box.id, box);
    if (box.kind === "module" && state.expanded.has(box.id)) openScope(view, box);
    else view.stands.set(box.id, []);
  }
}

const isOpen = (view, item) => view.scopes.has(item.id);

// The box that shows an item: the item itself, its twin in a fold, or a closed module around it.
function shownAs(view, item) {
  if (!view.seen.has(item)) view.seen.set(item, findShown(view, item));
  return view.seen.get(item);
}

function findShown(view, item) {
  const drawn = representative(item);
  return (
    [drawn, ...ancestors(drawn)]
      .reverse()
      .find((candidate) => candidate !== root && !isOpen(view, candidate)) ?? drawn
  );
}

function route(view, edge) {
  const [from, to] = [items.get(edge.source), items.get(edge.target)];
  if (!from || !to) return;
  const [source, target] = [shownAs(view, from), shownAs(view, to)];
  if (source === target) return;
  // an edge between blocks of a folded run is implied by the count at the block
  const folded = representative(from) !== from || representative(to) !== to;
  if (folded && source.first >= target.first) return;
  const up = [source, ...ancestors(source)];
  const down = [target, ...ancestors(target)];
  const common = up.find((item) => down.includes(item));
  let here = end(source);
  for (const scope of up.slice(1, up.indexOf(common))) {
    const port = addPort(view, scope, "out", source);
    addSegment(view, scope, here, port, edge, source, target);
    here = port;
  }
  const inner = down.slice(1, down.indexOf(common)).reverse();
  let scope = common;
  for (const next of inner) {
    const port = addPort(view, next, "in", source);
    addSegment(view, scope, here, port, edge, source, target);
    here = port;
    scope = next;
  }
  addSegment(view, scope, here, end(target), edge, source, target);
}

const end = (item) => ({ key: item.id, box: item.id, port: null });

// One port per value, so that a stream that is read five times inside enters once.
function addPort(view, item, side, source) {
  const key = `${side}|${source.id}`;
  view.scopes.get(item.id).ports.set(key, { key, side });
  return { key: `${item.id}|${key}`, box: item.id, port: key };
}

function addSegment(view, scope, from, to, edge, source, target) {
  const segments = view.scopes.get(scope.id).segments;
  const key = `${from.key}>${to.key}`;
  if (!segments.has(key)) {
    segments.set(key, {
      key: `${scope.id}:${key}`,
      from,
      to,
      edges: [],
      source,
      targets: new Set(),
    });
  }
  const segment = segments.get(key);
  segment.edges.push(edge);
  segment.targets.add(target.id);
}
