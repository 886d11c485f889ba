// The whole drawing in a corner, with a frame around the visible part.

const MAP = { w: 168, h: 112 };
const mapCanvas = html("canvas", { width: 2 * MAP.w, height: 2 * MAP.h });
const mapFrame = html("div", { class: "map-frame" });
byId("minimap").append(mapCanvas, mapFrame);

const mapScale = () => Math.min(MAP.w / geometry.w, MAP.h / geometry.h);
const mapOffset = () => ({
  x: (MAP.w - geometry.w * mapScale()) / 2,
  y: (MAP.h - geometry.h * mapScale()) / 2,
});

// The theme's colours, read once because computed styles are slow.
const paints = { frame: "", line: "", surface: "" };

function readPaints() {
  const theme = getComputedStyle(document.documentElement);
  for (const name of Object.keys(paints)) paints[name] = theme.getPropertyValue(`--${name}`);
}

function drawMinimap() {
  const context = mapCanvas.getContext("2d");
  const scale = mapScale();
  const { x, y } = mapOffset();
  context.setTransform(2, 0, 0, 2, 0, 0);
  context.clearRect(0, 0, MAP.w, MAP.h);
  for (const box of geometry.boxes.values()) {
    const open = isOpen(view, box.item);
    const [first] = open ? [] : leadingGroups(writtenGroups(view.stands.get(box.item.id)), 1);
    context.fillStyle = open ? paints.frame : first ? groupColour(first) : paints.line;
    context.fillRect(
      x + box.x * scale,
      y + box.y * scale,
      Math.max(1, box.w * scale),
      Math.max(1, box.h * scale),
    );
  }
  moveMinimapFrame();
}

function moveMinimapFrame() {
  if (!geometry) return;
  const scale = mapScale();
  const offset = mapOffset();
  const { w, h } = frameSize();
  const left = Math.max(0, offset.x - (camera.x / camera.zoom) * scale);
  const top = Math.max(0, offset.y - (camera.y / camera.zoom) * scale);
  const right = Math.min(MAP.w, offset.x + ((w - camera.x) / camera.zoom) * scale);
  const bottom = Math.min(MAP.h, offset.y + ((h - camera.y) / camera.zoom) * scale);
  byId("minimap").classList.toggle("idle", contained(everything()));
  styled(mapFrame, {
    transform: `translate(${left}px, ${top}px)`,
    width: `${Math.max(2, right - left)}px`,
    height: `${Math.max(2, bottom - top)}px`,
  });
}

function lookFromMinimap(event) {
  if (!event.buttons) return;
  const frame = mapCanvas.getBoundingClientRect();
  const offset = mapOffset();
  const { w, h } = frameSize();
  const x = (event.clientX - frame.left - offset.x) / mapScale();
  const y = (event.clientY - frame.top - offset.y) / mapScale();
  look({ ...camera, x: w / 2 - x * camera.zoom, y: h / 2 - y * camera.zoom });
}

byId("minimap").addEventListener("pointerdown", lookFromMinimap);
byId("minimap").addEventListener("pointermove", lookFromMinimap);
