// Highlights the items that belong together and dims the rest.

let hovered = null;

const ROLES = ["members", "couplers", "reads", "readers"];

const producers = new Map();
const consumers = new Map();
for (const edge of drawing.edges) {
  for (const [map, from, to] of [
    [producers, edge.target, edge.source],
    [consumers, edge.source, edge.target],
  ]) {
    if (!map.has(from)) map.set(from, new Set());
    map.get(from).add(to);
  }
}

const union = (lists) => new Set(lists.flatMap((list) => [...(list ?? [])]));

const unlit = () => ({
  groups: new Set(),
  members: new Set(),
  couplers: new Set(),
  reads: new Set(),
  readers: new Set(),
  own: new Set(),
});

function ofGroup(id) {
  const group = groups.get(id);
  return {
    ...unlit(),
    groups: new Set([id]),
    members: new Set(group.nodes),
    couplers: new Set(group.couplers),
    readers: new Set(group.readers),
  };
}

// The groups of a node are those it writes; groups that it only reads are shown by their producers.
function ofItem(item) {
  const own = new Set(item.leaves.map((leaf) => leaf.id));
  const outside = (ids) => new Set([...ids].filter((id) => !own.has(id)));
  const makes = item.kind === "node" ? writtenGroups([item]) : passedOn(item, own);
  const told = [...new Set(makes)].map((id) => groups.get(id)).filter(Boolean);
  return {
    groups: new Set(told.map((group) => group.id)),
    own,
    members: union(told.map((group) => group.nodes)),
    couplers: union(told.map((group) => group.couplers)),
    reads: outside(union([...own].map((id) => producers.get(id)))),
    readers: outside(
      union([...told.map((group) => group.readers), ...[...own].map((id) => consumers.get(id))]),
    ),
  };
}

function passedOn(item, own) {
  return drawing.edges
    .filter((edge) => own.has(edge.source) && !own.has(edge.target))
    .flatMap((edge) => edge.groups ?? []);
}

function lightOf(what) {
  if (!what) return null;
  return what.kind === "group" ? ofGroup(what.id) : ofItem(items.get(what.id));
}

function highlight() {
  if (!view) return;
  const light = lightOf(hovered ?? state.selected);
  graph.classList.toggle("focused", Boolean(light));
  const [only, ...others] = light?.groups ?? [];
  graph.style.setProperty(
    "--lit",
    (only && !others.length && groupColour(only)) || "var(--accent)",
  );
  for (const [id, { element }] of drawn) lightBox(id, element, light);
  for (const { segment, element } of geometry.lines) {
    element.classList.toggle("lit", Boolean(light) && isLitSegment(segment, light));
  }
  const chosen =
    state.selected?.kind === "item" ? shownAs(view, items.get(state.selected.id)) : null;
  for (const [id, { element }] of drawn) element.classList.toggle("selected", id === chosen?.id);
}

const touched = (item, light) =>
  item.leaves.some(
    (leaf) =>
      light.own.has(leaf.id) ||
      ROLES.some((role) => light[role].has(leaf.id)) ||
      passes(leaf, light),
  );

function lightBox(id, element, light) {
  const leaves = view.stands.get(id);
  if (!leaves)
    return element.classList.toggle("lit", Boolean(light) && touched(items.get(id), light));
  const among = (set) => leaves.filter((leaf) => set.has(leaf.id)).length;
  const counts = Object.fromEntries(ROLES.map((role) => [role, light ? among(light[role]) : 0]));
  for (const role of ROLES) element.classList.toggle(role, counts[role] > 0);
  const lit =
    light &&
    (among(light.own) > 0 ||
      ROLES.some((role) => counts[role] > 0) ||
      leaves.some((leaf) => passes(leaf, light)));
  element.classList.toggle("lit", Boolean(lit));
  countBadge(element, leaves.length > 1 ? counts.members : 0, light);
}

const passes = ({ data }, light) => (data.carries ?? []).some((id) => light.groups.has(id));

// A box that stands for several nodes shows how many of them are members.
function countBadge(element, count, light) {
  element.querySelector(":scope > .count")?.remove();
  if (!count) return;
  const label = String(count);
  const width = textWidth(label, PILL) + 12;
  const badge = svg(
    "g",
    { class: "count" },
    svg("title", {}, `${plural(count, "member")} inside`),
    rect("", -8, -9, width, 18, 9),
    text("", -8 + width / 2, 4, label, { "text-anchor": "middle" }),
  );
  badge.style.setProperty("--group", groupColour([...light.groups][0]) ?? "");
  element.append(badge);
}

function isLitSegment(segment, light) {
  const touches = segment.edges.some(
    (edge) => light.own.has(edge.source) || light.own.has(edge.target),
  );
  return (
    touches || segment.edges.some((edge) => (edge.groups ?? []).some((id) => light.groups.has(id)))
  );
}

function hover(what) {
  if (hovered?.id === what?.id) return;
  hovered = what;
  highlight();
}
