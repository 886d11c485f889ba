// Zoom and pan change one transform; nothing is redrawn.

const camera = { x: 0, y: 0, zoom: 1 };
const NEAREST = 4;
const FARTHEST = 0.02;
const FAR = 0.28; // texts are unreadable below this zoom
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let gliding = 0;
let resting = 0;
let footHeight = 0; // height of the task slider, which covers the picture

// Measured only on changes, because reading sizes forces the browser to lay out the document.
let frame = { w: graph.clientWidth || 1, h: graph.clientHeight || 1 };
const frameSize = () => frame;
let nowSeen;
const seen = new Promise((resolve) => {
  nowSeen = resolve;
});
if (graph.clientWidth && graph.clientHeight) nowSeen();
new ResizeObserver(([entry]) => {
  const { width, height } = entry.contentRect;
  frame = { w: width || 1, h: height || 1 };
  moveMinimapFrame();
  if (width && height) nowSeen();
}).observe(graph);

function look({ x, y, zoom }) {
  Object.assign(camera, { x, y, zoom });
  if (!movePicture()) settle();
  moveMinimapFrame();
  clearTimeout(resting);
  resting = setTimeout(() => {
    settle();
    dress(false);
  }, 120);
}

function settle() {
  const { x, y, zoom } = camera;
  world.setAttribute("transform", `translate(${x} ${y}) scale(${zoom})`);
  const level = zoom < FAR ? "far" : zoom < 0.5 ? "middle" : "near";
  if (graph.dataset.level !== level) graph.dataset.level = level;
  byId("canvas").classList.remove("moving");
}

function glide(to) {
  cancelAnimationFrame(gliding);
  if (calm.matches) return look(to);
  const from = { ...camera };
  const start = performance.now();
  const step = (now) => {
    const part = Math.min(1, (now - start) / 280);
    const eased = 1 - (1 - part) ** 3;
    const mix = (key) => from[key] + (to[key] - from[key]) * eased;
    look({ x: mix("x"), y: mix("y"), zoom: mix("zoom") });
    if (part < 1) gliding = requestAnimationFrame(step);
  };
  gliding = requestAnimationFrame(step);
}

function zoomAt(factor, x, y) {
  cancelAnimationFrame(gliding);
  const zoom = Math.min(NEAREST, Math.max(FARTHEST, camera.zoom * factor));
  const ratio = zoom / camera.zoom;
  look({ x: x - (x - camera.x) * ratio, y: y - (y - camera.y) * ratio, zoom });
}

function zoomBy(factor) {
  const { w, h } = frameSize();
  const zoom = Math.min(NEAREST, Math.max(FARTHEST, camera.zoom * factor));
  const ratio = zoom / camera.zoom;
  glide({ x: w / 2 - (w / 2 - camera.x) * ratio, y: h / 2 - (h / 2 - camera.y) * ratio, zoom });
}

function fitting(box, most = 1.25) {
  const { w, h } = frameSize();
  const margin = 28;
  const foot = footHeight;
  const zoom = Math.max(
    FARTHEST,
    Math.min(most, (w - 2 * margin) / box.w, (h - 2 * margin - foot) / box.h),
  );
  return {
    zoom,
    x: (w - box.w * zoom) / 2 - box.x * zoom,
    y: (h - foot - box.h * zoom) / 2 - box.y * zoom,
  };
}

const everything = () => ({ x: 0, y: 0, w: geometry.w, h: geometry.h });

const fit = () => glide(fitting(everything()));

// Initially shows the whole drawing if it is readable, otherwise its beginning.
function firstLook() {
  const whole = fitting(everything());
  const zoom = Math.max(whole.zoom, 0.5);
  look(zoom === whole.zoom ? whole : { zoom, x: (frameSize().w - geometry.w * zoom) / 2, y: 28 });
}

function centre(id, zoom = Math.max(camera.zoom, 0.85)) {
  const box = geometry.boxes.get(id);
  if (!box) return;
  const { w, h } = frameSize();
  const fits = Math.min(zoom, (w - 60) / box.w, (h - 60) / box.h);
  glide({
    zoom: fits,
    x: w / 2 - (box.x + box.w / 2) * fits,
    y: h / 2 - (box.y + box.h / 2) * fits,
  });
}

// Moves boxes into view unless all of them are visible.
function gather(ids) {
  const boxes = ids.map((id) => geometry.boxes.get(id)).filter(Boolean);
  if (!boxes.length || boxes.every(contained)) return;
  const edge = (pick, of) => of(...boxes.map(pick));
  const [x, y] = [edge((box) => box.x, Math.min), edge((box) => box.y, Math.min)];
  glide(
    fitting({
      x,
      y,
      w: edge((box) => box.x + box.w, Math.max) - x,
      h: edge((box) => box.y + box.h, Math.max) - y,
    }),
  );
}

const onScreen = (box) => ({
  x: box.x * camera.zoom + camera.x,
  y: box.y * camera.zoom + camera.y,
  w: box.w * camera.zoom,
  h: box.h * camera.zoom,
});

function inSight(box) {
  const { w, h } = frameSize();
  const seen = onScreen(box);
  return seen.x < w && seen.y < h && seen.x + seen.w > 0 && seen.y + seen.h > 0;
}

function contained(box) {
  const { w, h } = frameSize();
  const seen = onScreen(box);
  return seen.x >= 0 && seen.y >= 0 && seen.x + seen.w <= w && seen.y + seen.h <= h;
}

function ensureVisible(id) {
  if (!contained(geometry.boxes.get(id))) centre(id, camera.zoom);
}

const fingers = new Map();
let dragged = false;

function pinch() {
  const [a, b] = [...fingers.values()];
  return { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, spread: Math.hypot(a.x - b.x, a.y - b.y) || 1 };
}

const inFrame = (event) => {
  const frame = graph.getBoundingClientRect();
  return { x: event.clientX - frame.left, y: event.clientY - frame.top };
};

graph.addEventListener(
  "wheel",
  (event) => {
    event.preventDefault();
    const { x, y } = inFrame(event);
    const speed = event.ctrlKey ? 0.01 : event.deltaMode ? 0.05 : 0.0016;
    zoomAt(Math.exp(-event.deltaY * speed), x, y);
  },
  { passive: false },
);

graph.addEventListener("pointerdown", (event) => {
  fingers.set(event.pointerId, inFrame(event));
  dragged = false;
  cancelAnimationFrame(gliding);
});

graph.addEventListener("pointermove", (event) => {
  const before = fingers.get(event.pointerId);
  if (!before) return;
  const now = inFrame(event);
  const old = fingers.size === 2 ? pinch() : null;
  if (!dragged && fingers.size === 1 && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
  dragged = true;
  graph.classList.add("dragging");
  // captured only now: a captured pointer would take the click from the box under it
  if (!graph.hasPointerCapture(event.pointerId)) graph.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, now);
  if (old) {
    const next = pinch();
    look({ ...camera, x: camera.x + next.x - old.x, y: camera.y + next.y - old.y });
    zoomAt(next.spread / old.spread, next.x, next.y);
  } else if (fingers.size === 1) {
    look({ ...camera, x: camera.x + now.x - before.x, y: camera.y + now.y - before.y });
  }
});

for (const name of ["pointerup", "pointercancel"]) {
  graph.addEventListener(name, (event) => {
    fingers.delete(event.pointerId);
    graph.classList.remove("dragging");
  });
}
