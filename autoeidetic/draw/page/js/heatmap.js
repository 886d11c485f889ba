// The blocks of a weight: rows are outputs and columns are inputs, both sorted by owner.

const BLOCKS = {
  frozen: "owned, cannot change",
  reusable: "read by new channels",
  zeroed: "kept at zero",
  free: "not used yet",
};

// A task owns something only if it is learned at the moment that is shown.
const FREE = -1;
const GIVEN = -2; // inputs and constants, which exist before all tasks
const ownerNow = (owner) => (owner < state.task ? owner : FREE);
const transfers = drawing.ownership?.forward_transfer !== false;

function blockKind(row, column) {
  const readable = column === GIVEN || (transfers && column !== FREE);
  if (row === FREE) return readable ? "reusable" : column === FREE ? "free" : "zeroed";
  return column === GIVEN || column === row || (readable && column < row) ? "frozen" : "zeroed";
}

function heatmap(blocks) {
  const rows = blocks.levels;
  const columns = blocks.columns?.length ? blocks.columns : [[GIVEN, 1]]; // a bias has no inputs
  const size = 280;
  const picture = svg("svg", { class: "heat", viewBox: `0 0 ${size} ${size}`, role: "img" });
  const shares = Object.fromEntries(Object.keys(BLOCKS).map((kind) => [kind, 0]));
  let y = 0;
  for (const [rowOwner, height] of scaled(rows, size)) {
    let x = 0;
    for (const [columnOwner, width] of scaled(columns, size)) {
      const row = ownerNow(rowOwner);
      const column = ownerNow(columnOwner);
      const kind = blockKind(row, column);
      shares[kind] += (width * height) / size ** 2;
      const cell = rect(`cell ${kind}`, x + 0.5, y + 0.5, width - 1, height - 1, 2);
      const owner = kind === "frozen" ? row : column;
      if (owner >= 0) cell.style.setProperty("--task", taskColour(owner));
      cell.append(
        svg("title", {}, `${ownerName(rowOwner)} reads ${ownerName(columnOwner)}: ${kind}`),
      );
      picture.append(cell);
      x += width;
    }
    y += height;
  }
  picture.setAttribute(
    "aria-label",
    Object.entries(shares)
      .map(([kind, part]) => `${kind} ${percent(part)}`)
      .join(", "),
  );
  return html(
    "figure",
    { class: "heatmap" },
    picture,
    heatLegend(shares),
    html(
      "figcaption",
      {},
      `${blocks.parameter ?? "weight"}: rows are outputs, columns inputs, by owner`,
    ),
  );
}

function ownerName(owner) {
  const now = ownerNow(owner);
  if (now === GIVEN) return "input";
  return now === FREE ? "free" : drawing.tasks[now].name;
}

function scaled(runs, size) {
  const all = runs.reduce((sum, [, count]) => sum + count, 0) || 1;
  return runs.map(([owner, count]) => [owner, (count * size) / all]);
}

const heatLegend = (shares) =>
  html(
    "ul",
    { class: "heat-legend" },
    Object.entries(BLOCKS).map(([kind, meaning]) =>
      html(
        "li",
        {},
        heatSwatch(kind),
        html("b", {}, kind),
        ` ${percent(shares[kind])}`,
        html("span", {}, meaning),
      ),
    ),
  );

// Frozen and reusable blocks have their task's colour, so their legend entry shows all task colours.
const heatSwatch = (kind) =>
  html(
    "i",
    { class: `cell ${kind}` },
    ["frozen", "reusable"].includes(kind)
      ? drawing.tasks
          .slice(0, state.task)
          .map((_, task) => styled(html("i"), { "--task": taskColour(task) }))
      : [],
  );
