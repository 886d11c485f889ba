// Deep links: #layer=, #module=, #node=, #group= and #task= store the selection.

function linkOf() {
  const parts = new URLSearchParams();
  const { selected } = state;
  if (selected?.kind === "group") parts.set("group", groups.get(selected.id).name);
  if (selected?.kind === "item") {
    const { kind, data } = items.get(selected.id);
    const named = kind === "node" && data.path && byPath(data.path)?.id === selected.id;
    if (kind === "module" && !data.part) parts.set("module", data.path);
    else if (named) parts.set("layer", data.path);
    else parts.set("node", selected.id);
  }
  if (drawing.tasks.length && state.task !== drawing.tasks.length) parts.set("task", state.task);
  return String(parts);
}

function writeLink() {
  const link = linkOf();
  if (link === location.hash.slice(1)) return;
  try {
    history.replaceState(null, "", `#${link}`);
  } catch {
    /* a page inside a notebook has no address */
  }
}

const byPath = (path) =>
  drawing.nodes.find((node) => node.path === path && node.kind !== "operator") ??
  drawing.nodes.find((node) => node.path === path);

function linkedItem(parts) {
  if (parts.has("node")) return parts.get("node");
  if (parts.has("module"))
    return drawing.modules.find(({ path }) => path === parts.get("module"))?.id;
  if (!parts.has("layer")) return null;
  const path = parts.get("layer");
  return (byPath(path) ?? drawing.modules.find((module) => module.path === path))?.id;
}

async function followLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const task = parts.get("task");
  if (drawing.tasks.length && task !== null && /^\d+$/.test(task)) setTask(Number(task));
  const id = linkedItem(parts);
  const wanted = parts.get("group");
  const group = drawing.groups.find((one) => one.id === wanted || one.name === wanted);
  if (items.has(id)) await reveal(id);
  else if (group) showGroup(group.id);
  else if (wanted || parts.has("layer") || parts.has("module") || parts.has("node")) {
    announce("The target of the link is not in this drawing");
  }
}

addEventListener("hashchange", followLink);
