// Segments of edges: one path each, with round corners and the style of its kind; the last segment
// ends in an arrow.

const KINDS = ["coupled", "consumes", "gates", "normalises"];
const CORNER = 7;

function dominantKind(edges) {
  return KINDS.find((kind) => edges.some((edge) => edge.kind === kind)) ?? "consumes";
}

// Removes steps too small to be visible: the line is moved to its end point.
function straight(line) {
  const points = line.map((point) => ({ ...point }));
  for (let index = points.length - 2; index >= 0; index -= 1) {
    if (Math.abs(points[index].x - points[index + 1].x) < 3) points[index].x = points[index + 1].x;
  }
  return points;
}

function rounded(line) {
  let path = `M${line[0].x} ${line[0].y}`;
  for (let index = 1; index < line.length - 1; index += 1) {
    const [before, corner, after] = [line[index - 1], line[index], line[index + 1]];
    const a = towards(corner, before);
    const b = towards(corner, after);
    path += `L${a.x} ${a.y}Q${corner.x} ${corner.y} ${b.x} ${b.y}`;
  }
  return `${path}L${line.at(-1).x} ${line.at(-1).y}`;
}

function towards(corner, other) {
  const distance = Math.hypot(other.x - corner.x, other.y - corner.y) || 1;
  const part = Math.min(CORNER, distance / 2) / distance;
  return { x: corner.x + (other.x - corner.x) * part, y: corner.y + (other.y - corner.y) * part };
}

function drawSegment({ segment, line }) {
  const kind = dominantKind(segment.edges);
  const ids = segment.edges.flatMap((edge) => edge.groups ?? []);
  const [first] = leadingGroups(ids, 1);
  const last = segment.to.port === null;
  const group = svg("g", { class: `edge ${kind}`, "data-key": segment.key });
  group.append(svg("path", { class: "line", d: rounded(straight(line)) }));
  if (last) group.append(arrow(kind, line.at(-1)));
  if (first) {
    group.setAttribute("data-group", first);
    group.style.setProperty("--group", groupColour(first));
  }
  if (first && isStream(groups.get(first))) group.classList.add("stream");
  if (segment.edges.every((edge) => gone.has(edge.source) || gone.has(edge.target)))
    group.classList.add("gone");
  return group;
}

const HEADS = {
  coupled: "M0 0L-5.5 -9L0 -6.5L5.5 -9Z",
  consumes: "M0 0L-4 -8L4 -8Z",
  gates: "M0 0L-4.5 -5L0 -10L4.5 -5Z",
  normalises: "M-4 -6L0 0L4 -6",
};

// A path, not a marker: not every program gives a marker the colour of its line. Lines always
// arrive from above.
const arrow = (kind, tip) =>
  svg("path", { class: "tip", d: HEADS[kind], transform: `translate(${tip.x} ${tip.y})` });

// The description of an edge, created when the pointer first reaches it.
function explain(element) {
  if (element.querySelector("title")) return;
  const { segment } = geometry.lines.find((entry) => entry.element === element);
  const words = segment.edges.map(({ kind, operator, line }) =>
    [kind, operator, line].filter(Boolean).join(" · "),
  );
  element.append(svg("title", {}, [...new Set(words)].slice(0, 8).join("\n")));
}
