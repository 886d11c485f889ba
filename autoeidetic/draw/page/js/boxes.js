// One group of SVG elements for each visible item.

// Only the face and its colours at first: most of thousands of boxes are never seen close up.
function drawBox(spot) {
  const group = boxGroup(spot.item, false);
  if (isPill(spot.item)) pillFace(group, spot);
  else cardFace(group, spot);
  paintStripes(group);
  return group;
}

function dressBox(group, spot) {
  if (isPill(spot.item)) pillText(group, spot);
  else cardText(group, spot, view.stands.get(spot.item.id));
}

function boxGroup(item, open) {
  return svg("g", {
    class: boxClass(item, open),
    "data-id": item.id,
    tabindex: -1,
    role: "button",
    "aria-label": spoken(item, open),
    "aria-expanded": item.kind === "module" ? String(open) : null,
  });
}

const drawFrame = ({ item, w, h }) =>
  svg("g", { "data-id": item.id }, rect("frame", 0, 0, w, h, 12));

function drawHeading({ item, w }) {
  const label = boxText(item, foldCount(item));
  const title = shorten(label.title, TITLE, WIDEST);
  const group = boxGroup(item, true);
  group.append(
    rect("handle", 0, 0, w, 34, 12),
    switchButton(item, true, 9, 9),
    text("title", 34, 22, title),
    text("kind", 34 + textWidth(title, TITLE) + 8, 22, shorten(label.kind, SMALL, WIDEST)),
  );
  if (label.times) group.append(timesBadge(item, label.times, w - 9, 9));
  return group;
}

function boxClass(item, open) {
  const classes = ["box", item.kind === "module" ? "module" : item.data.kind];
  if (item.kind === "module") classes.push(open ? "open" : "closed");
  if (!open && item.leaves.every((leaf) => leaf.data.locked)) classes.push("locked");
  if (item.data.nested) classes.push("nested");
  if (isGone(item)) classes.push("gone");
  return classes.join(" ");
}

function spoken(item, open) {
  const { data } = item;
  const count = foldCount(item);
  const parts = [itemName(item), data.type, item.kind === "node" ? data.kind : "module"];
  if (count > 1) parts.push(`${count} equal blocks folded`);
  if (item.kind === "module")
    parts.push(open ? "open" : `closed, ${plural(item.leaves.length, "node")}`);
  if (data.shape?.length) parts.push(`shape ${data.shape.join(" by ")}`);
  if (data.parameters) parts.push(plural(data.parameters, "parameter"));
  const written = leadingGroups(writtenGroups([item]), 3).map((id) => groups.get(id).name);
  if (item.kind === "node" && written.length) parts.push(`group ${written.join(", ")}`);
  if (data.locked) parts.push(`locked: ${data.locked}`);
  return parts.filter(Boolean).join(", ");
}

const isMarked = (item) =>
  item.data.kind === "operator" && leadingGroups(writtenGroups([item]), 1).length > 0;

function pillFace(group, { item, w, h }) {
  group.append(rect("face", 0, 0, w, h, h / 2));
  if (!isMarked(item)) return;
  const [first] = leadingGroups(writtenGroups([item]), 1);
  group.append(svg("circle", { class: "stripe", "data-group": first, cx: 13, cy: h / 2, r: 3.5 }));
}

function pillText(group, { item, w, h }) {
  const label = boxText(item, 1);
  const room = w - 20 - (label.detail ? textWidth(label.detail, SMALL) + 8 : 0);
  group.append(text("pill", isMarked(item) ? 21 : 13, h / 2 + 4, shorten(label.title, PILL, room)));
  if (label.detail)
    group.append(text("detail", w - 12, h / 2 + 4, label.detail, { "text-anchor": "end" }));
}

function cardFace(group, { item, w, h }) {
  if (foldCount(item) > 1)
    group.append(rect("face under", 7, 7, w, h, 9), rect("face under", 3.5, 3.5, w, h, 9));
  group.append(
    rect("face", 0, 0, w, h, 9),
    ...stripes(writtenGroups(item.leaves), 7, 9, 4, h - 18),
  );
}

function cardText(group, { item, w, h }, leaves) {
  const label = boxText(item, foldCount(item));
  const buttons = item.kind === "module" ? 28 : 0;
  const times = label.times ? textWidth(label.times, PILL) + 20 : 0;
  const sign = item.data.kind === "failure" ? "warn" : hasLock(item) ? "lock" : null;
  const room = w - 30 - buttons - times - (sign ? 18 : 0);
  const title = shorten(label.title, TITLE, room);
  const left = room - textWidth(title, TITLE) - 8;
  group.append(text("title", 19, 19.5, title));
  if (left > 24)
    group.append(
      text("kind", 19 + textWidth(title, TITLE) + 8, 19.5, shorten(label.kind, SMALL, left)),
    );
  group.append(text("detail", 19, 36, shorten(label.detail, SMALL, w - 30)));
  if (sign)
    group.append(iconPath(sign, { class: `icon ${sign}`, transform: `translate(${w - 24} 6)` }));
  if (buttons) group.append(switchButton(item, false, w - 26, 8));
  if (times) group.append(timesBadge(item, label.times, w - 32, 8));
  if (drawing.tasks.length) group.append(ownershipBar(leaves, 19, h - 12, w - 30));
}
