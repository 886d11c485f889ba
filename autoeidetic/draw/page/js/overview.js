// Without a selection the panel summarises the model and lists its groups.

function overview() {
  const summary = drawing.summary ?? {};
  const sorted = [...drawing.groups].sort((a, b) => Number(isStream(b)) - Number(isStream(a)));
  const streams = sorted.filter(isStream);
  const rest = sorted.filter((group) => !isStream(group));
  return [
    html(
      "header",
      { class: "heading" },
      html("div", { class: "kicker" }, "Model"),
      html("h2", {}, drawing.title ?? ""),
    ),
    facts([
      ["Parameters", whole(summary.parameters)],
      ["Groups", whole(summary.groups ?? groups.size)],
      ["Units", summary.units ? whole(summary.units) : ""],
      ["Locked", summary.locked_share === undefined ? "" : percent(summary.locked_share)],
      ["Operators", summary.operators ? whole(summary.operators) : ""],
      ["Level by level", summary.nested ? plural(summary.nested, "node") : ""],
      ["Captured by", summary.captured_by],
      ["Tasks", leaving ? "" : drawing.tasks.length || ""],
      ["Leaving parameters", leaving ? leaving.parameters.map(whole).join(" / ") : ""],
    ]),
    html(
      "p",
      { class: "hint" },
      "Point at a box to see its groups. Double-click a module to open it.",
    ),
    groupList("Groups written by several layers", streams),
    groupList("Groups of one layer", rest),
  ].filter(Boolean);
}

const groupList = (title, list) =>
  list.length
    ? section(
        `${title} · ${list.length}`,
        chips(list, (group) => groupChip(group.id, groupNote(group))),
      )
    : null;

const groupNote = (group) =>
  `${plural(Math.max(1, writers(group).size), "layer")} · ${whole(group.size)}`;

const MEANINGS = {
  coupled: "goes on channel by channel",
  consumes: "a weight reads it",
  gates: "required without a weight",
  normalises: "enters a norm",
};

function legendLine(kind) {
  const picture = svg(
    "svg",
    { viewBox: "0 0 34 12", width: 34, height: 12, "aria-hidden": "true" },
    svg(
      "g",
      { class: `edge ${kind}` },
      svg("path", { class: "line", d: kind === "gates" ? "M1 6H24" : "M1 6H28" }),
      svg("path", { class: "tip", d: HEADS[kind], transform: "translate(33 6) rotate(-90)" }),
    ),
  );
  return html("li", { title: MEANINGS[kind] }, picture, kind);
}

const legendMark = (className, name, meaning) =>
  html(
    "li",
    { title: meaning },
    svg(
      "svg",
      { viewBox: "0 0 34 14", width: 34, height: 14, "aria-hidden": "true" },
      svg("g", { class: `box ${className}` }, rect("face", 6, 1, 22, 12, 4)),
    ),
    name,
  );

function buildLegend() {
  const marks = [
    ["members", "member", "same group"],
    ["couplers", "coupler", "couples the group"],
    ["readers", "reads / read by", "neighbours"],
  ];
  if (drawing.nodes.some((node) => node.locked))
    marks.push(["locked", "locked", "cannot be divided between tasks"]);
  byId("legend").append(
    ...["consumes", "coupled", "gates", "normalises"].map(legendLine),
    ...marks.map((mark) => legendMark(...mark)),
  );
}

function buildBanner() {
  const { failure } = drawing;
  if (!failure) return;
  const node = drawing.nodes.find(({ kind }) => kind === "failure");
  const where = [
    failure.operator,
    failure.module && `in ${failure.module}`,
    failure.line && `at ${failure.line}`,
  ]
    .filter(Boolean)
    .join(" ");
  byId("banner").append(
    icon("warn"),
    html(
      "div",
      {},
      html("p", {}, html("b", {}, "The analysis stopped here. "), failure.message),
      html("p", { class: "where" }, where),
      failure.remedy ? html("p", {}, failure.remedy) : null,
    ),
    ...(node ? [html("button", { type: "button", onclick: () => reveal(node.id) }, "Show")] : []),
  );
  byId("banner").hidden = false;
}
