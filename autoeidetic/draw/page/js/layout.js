// Layout from the inside out: every open module separately, then as a box of the module around it.

const HEIGHTS = [Infinity, 1100, 800, 600, 440]; // of modules; taller ones are laid out in columns
const THOROUGH = 40; // all heights are tried up to this number of open modules
const solved = new Map();
let tall = HEIGHTS[1];

async function layoutView(view, onProgress) {
  const placed = new Map();
  let done = 0;
  const one = async (item) => {
    const scope = view.scopes.get(item.id);
    const open = scope.boxes.filter((box) => view.scopes.has(box.id));
    await Promise.all(open.map(one));
    const inner = new Map(open.map((box) => [box.id, placed.get(box.id)]));
    placed.set(item.id, await placeScope(scope, inner));
    done += 1;
    onProgress(done, view.scopes.size);
  };
  await one(root);
  return absolute(view, placed);
}

// The column height at which the drawing can be shown largest.
async function layoutBest(view, onProgress) {
  if (view.scopes.size > THOROUGH) return layoutView(view, onProgress);
  let best = { zoom: 0 };
  for (const height of HEIGHTS) {
    tall = height;
    const placed = await layoutView(view, onProgress);
    const { zoom } = fitting({ x: 0, y: 0, w: placed.w, h: placed.h }, 1);
    if (zoom > 1.08 * best.zoom) best = { zoom, height, placed };
    if (best.zoom > 0.95) break;
  }
  tall = best.height;
  return best.placed;
}

async function placeScope(scope, inner) {
  const result = await solve(scopeGraph(scope, inner));
  const ends = result.height > result.width ? bestColumns(scope, result) : [];
  if (!ends.length) return readScope(scope, result);
  const columns = await Promise.all(
    splitScope(scope, ends).map(async (column) =>
      readScope(column, await solve(scopeGraph(column, inner))),
    ),
  );
  return joinColumns(scope, columns);
}

function solve(module) {
  const key = JSON.stringify(module);
  // ELK fails on some graphs if it has to keep the model's order
  if (!solved.has(key))
    solved.set(
      key,
      askElk(module).catch(() => askElk(withoutOrder(module))),
    );
  return solved.get(key);
}

// ELK knows outer ports only of nodes, not of the root graph, so the module is a node in a root.
async function askElk(module) {
  const around = {
    id: "around",
    layoutOptions: { "elk.algorithm": "layered" },
    children: [module],
  };
  return (await elkLayout(around)).children[0];
}

const withoutOrder = (module) => ({
  ...module,
  layoutOptions: { ...module.layoutOptions, "elk.layered.considerModelOrder.strategy": "NONE" },
});

function absolute(view, placed) {
  const { w, h } = placed.get(root.id);
  const geometry = { boxes: new Map(), lines: [], w, h };
  const walk = (item, x, y, depth) => {
    const { scope, places, lines } = placed.get(item.id);
    scope.boxes.forEach((box, index) => {
      const place = places[index];
      const spot = { item: box, x: x + place.x, y: y + place.y, w: place.w, h: place.h, depth };
      geometry.boxes.set(box.id, spot);
      if (view.scopes.has(box.id)) walk(box, spot.x, spot.y, depth + 1);
    });
    for (const { segment, line } of lines) {
      geometry.lines.push({
        segment,
        line: line.map((point) => ({ x: x + point.x, y: y + point.y })),
      });
    }
  };
  walk(root, 0, 0, 0);
  return geometry;
}
