// While a very large drawing is panned or zoomed, a bitmap of it is moved instead.

const picture = html("canvas", { id: "picture", "aria-hidden": "true" });
const SIDE = 3000; // pixels of the bitmap's longer side
let painted = null; // the geometry and theme that the bitmap shows

byId("canvas").insertBefore(picture, graph);

const pictureScale = () => Math.min(SIDE / geometry.w, SIDE / geometry.h, 0.5);

function paintPicture() {
  const scale = pictureScale();
  Object.assign(picture, { width: geometry.w * scale, height: geometry.h * scale });
  const context = picture.getContext("2d");
  context.scale(scale, scale);
  const boxes = [...geometry.boxes.values()].sort((a, b) => a.depth - b.depth);
  const fillBox = (box, colour) => {
    context.fillStyle = colour;
    context.fillRect(box.x, box.y, box.w, box.h);
  };
  for (const box of boxes) if (isOpen(view, box.item)) fillBox(box, paints.frame);
  context.lineWidth = 3;
  for (const { segment, line } of geometry.lines) {
    const [first] = leadingGroups(
      segment.edges.flatMap((edge) => edge.groups ?? []),
      1,
    );
    context.strokeStyle = groupColour(first) ?? paints.line;
    context.beginPath();
    for (const { x, y } of line) context.lineTo(x, y);
    context.stroke();
  }
  for (const box of boxes) if (!isOpen(view, box.item)) fillBox(box, paints.surface);
  painted = { geometry, theme: state.theme };
}

// Whether the bitmap now shows what the camera looks at.
function movePicture() {
  if (!geometry || geometry.boxes.size <= SMOOTH || camera.zoom > FAR) return false;
  if (painted?.geometry !== geometry || painted.theme !== state.theme) paintPicture();
  const scale = camera.zoom / pictureScale();
  picture.style.setProperty("transform", `translate(${camera.x}px, ${camera.y}px) scale(${scale})`);
  byId("canvas").classList.add("moving");
  return true;
}
