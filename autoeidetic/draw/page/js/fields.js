// The building blocks of the details panel.

const MANY = 12; // entries of a list shown before "Show all"

const section = (title, ...children) => html("section", {}, html("h3", {}, title), ...children);

const facts = (rows) =>
  html(
    "dl",
    { class: "facts" },
    rows
      .filter(([, value]) => value !== "" && value !== null && value !== undefined)
      .flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]),
  );

const swatch = (id) =>
  styled(html("i", { class: "swatch", "data-group": id }), { "--group": groupColour(id) });

function itemChip(item, note = "", name = nodeName(item)) {
  const what = { kind: "item", id: item.id };
  return html(
    "button",
    {
      type: "button",
      class: "chip",
      onclick: () => reveal(item.id),
      onpointerenter: () => hover(what),
      onpointerleave: () => hover(null),
    },
    html("span", { class: "path" }, breakable(name)),
    html("small", {}, breakable(note || item.data.type || "")),
  );
}

// Allows line breaks in a long path after dots and slashes.
const breakable = (path) =>
  String(path)
    .split(/(?<=\/)|(?<=\.)(?!py\b)/)
    .flatMap((part) => [part, html("wbr")]);

// An operator is named by its module and its own name, unless it is a module itself.
function nodeName(item) {
  const { path, label, name, kind } = item.data;
  if (kind !== "operator") return path || label || name || drawing.title;
  if (path && path.endsWith(label)) return path;
  return [path || item.parent.data.path, label].filter(Boolean).join(" › ");
}

function groupChip(id, note = "") {
  const group = groups.get(id);
  if (!group) return null;
  const what = { kind: "group", id };
  return html(
    "button",
    {
      type: "button",
      class: "chip",
      onclick: () => showGroup(id),
      onpointerenter: () => hover(what),
      onpointerleave: () => hover(null),
    },
    swatch(id),
    html("span", { class: "path" }, breakable(group.name)),
    html("small", {}, note || whole(group.size)),
  );
}

// A list that shows its first entries, and the rest on demand.
function chips(entries, make) {
  const list = html(
    "ul",
    { class: "chips" },
    entries.slice(0, MANY).map((entry) => html("li", {}, make(entry))),
  );
  if (entries.length <= MANY) return list;
  const more = html(
    "button",
    {
      type: "button",
      class: "more",
      onclick: () => {
        list.append(...entries.slice(MANY).map((entry) => html("li", {}, make(entry))));
        more.remove();
      },
    },
    `Show all ${entries.length}`,
  );
  return html("div", {}, list, more);
}

const itemsOf = (ids) =>
  [...ids]
    .map((id) => items.get(id))
    .filter(Boolean)
    .sort((a, b) => a.first - b.first);

async function copy(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // the clipboard may be missing in local pages and frames
  }
  const before = pressed.lastChild.textContent;
  pressed.lastChild.textContent = "Copied";
  announce(`Copied ${text}`);
  setTimeout(() => {
    pressed.lastChild.textContent = before;
  }, 1200);
}

function copyBySelection(text) {
  const field = html("textarea", { class: "quiet", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

const copyButton = (label, content) =>
  html(
    "button",
    {
      type: "button",
      class: "action",
      "data-copy": content(),
      onclick: (event) => copy(content(), event.currentTarget),
    },
    icon("copy"),
    html("span", {}, label),
  );
