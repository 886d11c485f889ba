// The panel: details of the selected layer, module or group.

function showDetails() {
  const { selected } = state;
  const panel = byId("panel");
  if (!selected) panel.replaceChildren(...overview());
  else if (selected.kind === "group")
    panel.replaceChildren(...groupDetails(groups.get(selected.id)));
  else panel.replaceChildren(...itemDetails(items.get(selected.id)));
  showTask();
}

function heading(kicker, title, note) {
  return html(
    "header",
    { class: "heading" },
    html(
      "div",
      { class: "kicker" },
      kicker,
      html(
        "button",
        {
          type: "button",
          class: "dismiss",
          title: "Clear the selection (Esc)",
          "aria-label": "Clear the selection",
          onclick: () => select(null),
        },
        "×",
      ),
    ),
    html("h2", {}, breakable(title)),
    note ? html("p", {}, note) : null,
  );
}

const KIND_NAMES = {
  input: "Input",
  output: "Output",
  layer: "Layer",
  head: "Head",
  operator: "Operator",
  failure: "Failure",
};

function itemDetails(item) {
  const { data } = item;
  const isModule = item.kind === "module";
  const path = data.path ?? "";
  return [
    heading(isModule ? "Module" : (KIND_NAMES[data.kind] ?? data.kind), nodeName(item), data.type),
    html(
      "div",
      { class: "actions" },
      path ? copyButton("Copy path", () => path) : null,
      copyButton("Copy link", () => location.href),
      isModule
        ? html(
            "button",
            { type: "button", class: "action", onclick: () => toggle(item.id) },
            icon(state.expanded.has(item.id) ? "minus" : "plus"),
            html("span", {}, state.expanded.has(item.id) ? "Close" : "Open"),
          )
        : null,
    ),
    notice(item),
    facts(isModule ? moduleFacts(item) : nodeFacts(data)),
    ...foldNotice(item),
    ...taskSections(item),
    ...(isModule ? [] : groupSections(item)),
    ...flowSections(item),
  ].filter(Boolean);
}

function notice(item) {
  const { data } = item;
  if (data.kind === "failure" && drawing.failure) return failureNotice();
  if (data.locked) {
    return html(
      "div",
      { class: "notice lock" },
      icon("lock"),
      html("p", {}, html("b", {}, "Locked. "), data.locked),
    );
  }
  return null;
}

const failureNotice = () =>
  html(
    "div",
    { class: "notice failure" },
    icon("warn"),
    html(
      "div",
      {},
      html("p", {}, html("b", {}, drawing.failure.message)),
      html("p", {}, drawing.failure.remedy ?? ""),
    ),
  );

function nodeFacts(data) {
  return [
    ["Output shape", dimensions(data.shape)],
    ["Parameters", data.parameters ? whole(data.parameters) : ""],
    ...Object.entries(data.parameter_shapes ?? {}).map(([name, shape]) => [
      `  ${name}`,
      dimensions(shape) || "scalar",
    ]),
    ["Units", data.units ? whole(data.units) : ""],
    ["Evaluation", data.nested ? "level by level" : ""],
    ["Source", data.line],
  ];
}

function moduleFacts(item) {
  const written = new Set(writtenGroups(item.leaves));
  return [
    ["Parameters", whole(item.data.parameters)],
    ["Nodes inside", whole(item.leaves.length)],
    ["Locked nodes", whole(item.leaves.filter((leaf) => leaf.data.locked).length)],
    ["Groups written", whole(written.size)],
    [
      "Equal blocks",
      item.data.repeat?.count > 1
        ? `${item.data.repeat.index + 1} of ${item.data.repeat.count}`
        : "",
    ],
  ];
}

function foldNotice(item) {
  const block = [item, ...ancestors(item)].find((above) => foldCount(above) > 1);
  if (!block) return [];
  const { count } = block.data.repeat;
  return [
    html(
      "div",
      { class: "notice" },
      html(
        "p",
        {},
        `Drawn once for ${count} equal blocks. `,
        html(
          "button",
          { type: "button", class: "inline", onclick: () => unfold(block.id) },
          "Unfold them",
        ),
      ),
    ),
  ];
}

const ROLE_NAMES = {
  output: "writes",
  input: "reads",
  norm: "normalises",
  depthwise: "filters",
  free: "belongs to",
  bias: "adds to",
};

function groupSections(item) {
  const parts = item.data.groups ?? [];
  const own = parts.filter((part) => part.role !== "input");
  const read = parts.filter((part) => part.role === "input");
  const names = (part) =>
    groupChip(
      part.group,
      `${ROLE_NAMES[part.role] ?? part.role} · ${whole(groups.get(part.group)?.size)}`,
    );
  const carried = (item.data.carries ?? []).filter((id) => !own.some((part) => part.group === id));
  return [
    own.length ? section("In groups", chips(own, names)) : null,
    read.length ? section("Reads the groups", chips(read, names)) : null,
    carried.length
      ? section(
          "Passes on",
          chips(carried, (id) => groupChip(id)),
        )
      : null,
  ];
}

function flowSections(item) {
  const light = ofItem(item);
  const list = (title, ids) => {
    const found = itemsOf(ids);
    return found.length
      ? section(
          `${title} · ${found.length}`,
          chips(found, (one) => itemChip(one)),
        )
      : null;
  };
  return [
    list(
      "Members of the same groups",
      [...light.members].filter((id) => !light.own.has(id)),
    ),
    list(
      "Coupled by",
      [...light.couplers].filter((id) => !light.own.has(id)),
    ),
    list("Reads", light.reads),
    list("Read by", light.readers),
  ];
}

function leavingSections(item) {
  const { units, parameters } = leavingOf(item.leaves, whole);
  if (!parameters) return [];
  const title = `Leaves with ${drawing.tasks[0].name} / all`;
  return [
    section(
      title,
      facts([
        ["Units", item.kind === "node" ? units : ""],
        ["Parameters", parameters],
      ]),
    ),
  ];
}

function taskSections(item) {
  if (leaving) return leavingSections(item);
  const leaves = view?.stands.get(item.id) ?? item.leaves;
  const { shares, all } = shareOf(leaves);
  if (!all) return [];
  const now = atPresent(shares);
  const free = all - now.reduce((sum, share) => sum + share, 0);
  const row = (name, amount, colour) => [
    html("dt", {}, html("i", { class: "swatch", "data-task-colour": colour }), name),
    html("dd", {}, `${whole(amount)} · ${percent(amount / all)}`),
  ];
  const blocks = drawing.ownership?.blocks?.[item.data.path];
  return [
    section(
      "Owned by",
      html(
        "dl",
        { class: "facts owners" },
        now.flatMap((amount, index) => row(drawing.tasks[index].name, amount, index)),
        row("free", free, null),
      ),
    ),
    blocks && item.kind === "node"
      ? html(
          "details",
          {
            class: "blocks",
            open: state.blocks,
            ontoggle: (event) => {
              state.blocks = event.target.open;
            },
          },
          html("summary", {}, "Blocks of the weight"),
          heatmap(blocks),
        )
      : null,
  ];
}

function groupDetails(group) {
  const members = (group.members ?? []).filter(({ role }) => role !== "input");
  const places = new Map(
    [...drawing.nodes].reverse().map((node) => [node.path, items.get(node.id)]),
  );
  const free = drawing.ownership?.groups?.[group.id];
  return [
    heading(
      isStream(group) ? "Group written by several layers" : "Group",
      group.name,
      `${plural(group.size, "channel")} that belong together`,
    ),
    html(
      "div",
      { class: "actions" },
      copyButton("Copy link", () => location.href),
    ),
    group.locked
      ? html(
          "div",
          { class: "notice lock" },
          icon("lock"),
          html("p", {}, html("b", {}, "Locked. "), group.locked),
        )
      : null,
    facts([
      ["Channels", whole(group.size)],
      ["Elements", whole(group.elements)],
      ["Members", whole(group.nodes.length)],
      [
        "Free channels",
        free ? whole(group.size - atPresent(free).reduce((sum, n) => sum + n, 0)) : "",
      ],
    ]),
    section(
      `Member parameters · ${members.length}`,
      chips(members, (member) => memberChip(member, places)),
    ),
    group.couplers.length
      ? section(
          `Coupled by · ${group.couplers.length}`,
          chips(itemsOf(group.couplers), (item) => itemChip(item, item.data.line)),
        )
      : null,
    group.bonds?.length
      ? section(`Bonds · ${group.bonds.length}`, chips(group.bonds, bondLine))
      : null,
    group.readers.length
      ? section(
          `Read by · ${group.readers.length}`,
          chips(itemsOf(group.readers), (item) => itemChip(item)),
        )
      : null,
    group.requires?.length
      ? section(
          "Requires",
          chips(group.requires, (id) => groupChip(id)),
        )
      : null,
  ].filter(Boolean);
}

function memberChip(member, places) {
  const item = places.get(member.layer);
  const note = [member.role, member.elements ? short(member.elements) : ""]
    .filter(Boolean)
    .join(" · ");
  const name = member.parameter || member.layer;
  if (item) return itemChip(item, note, name);
  return html(
    "span",
    { class: "chip" },
    html("span", { class: "path" }, breakable(name)),
    html("small", {}, note),
  );
}

const bondLine = (bond) =>
  html(
    "span",
    { class: "chip" },
    html("span", { class: "path" }, [bond.operator, bond.module].filter(Boolean).join(" in ")),
    html("small", {}, [bond.kind, bond.line].filter(Boolean).join(" · ")),
  );
