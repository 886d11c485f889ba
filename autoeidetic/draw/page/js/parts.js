// The parts of a box.

const rect = (className, x, y, w, h, radius, more = {}) =>
  svg("rect", {
    class: className || null,
    x,
    y,
    width: Math.max(0, w),
    height: Math.max(0, h),
    rx: radius,
    ...more,
  });

const text = (className, x, y, content, more = {}) => {
  const element = svg("text", { class: className || null, x, y, ...more });
  element.textContent = content;
  return element;
};

// The channels that a box writes, as stripes at its left edge.
function stripes(ids, x, y, w, h) {
  const shown = leadingGroups(ids, 6);
  const height = h / Math.max(1, shown.length);
  return shown.map((id, index) =>
    svg("rect", { class: "stripe", "data-group": id, x, y: y + index * height, width: w, height }),
  );
}

function paintStripes(within) {
  for (const stripe of within.querySelectorAll("[data-group]")) {
    stripe.style.setProperty("--group", groupColour(stripe.getAttribute("data-group")));
  }
}

// The groups that a box writes as a member or passes on.
function writtenGroups(leaves) {
  const own = leaves.flatMap(({ data }) =>
    (data.groups ?? []).filter((part) => part.role !== "input").map((part) => part.group),
  );
  return own.length ? own : leaves.flatMap(({ data }) => data.carries ?? []);
}

const switchButton = (item, open, x, y) =>
  svg(
    "g",
    { class: "switch", "data-switch": item.id, transform: `translate(${x} ${y})` },
    svg("rect", { width: 18, height: 18, rx: 5 }),
    iconPath(open ? "minus" : "plus", { transform: "translate(1 1)" }),
  );

// The number of blocks in a fold; pressing the badge unfolds them.
function timesBadge(item, label, x, y) {
  const width = textWidth(label, PILL) + 14;
  return svg(
    "g",
    { class: "times", "data-unfold": item.id, transform: `translate(${x - width} ${y})` },
    svg("rect", { width, height: 18, rx: 9 }),
    text("", width / 2, 13, label, { "text-anchor": "middle" }),
  );
}
