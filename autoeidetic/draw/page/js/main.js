// User actions, the toolbars, and the start of the page.

function select(what) {
  state.selected = what;
  hovered = null;
  highlight();
  showDetails();
  writeLink();
  byId("panel").scrollTop = 0;
  announce(what ? selectionSpoken(what) : "Selection cleared");
}

function showGroup(id) {
  select({ kind: "group", id });
  gather([...new Set(groups.get(id).nodes.map((node) => shownAs(view, items.get(node)).id))]);
}

function selectionSpoken(what) {
  if (what.kind === "group")
    return `Group ${groups.get(what.id).name}: ${plural(groups.get(what.id).nodes.length, "member")}`;
  const item = items.get(what.id);
  const light = ofItem(item);
  return `${spoken(item, isOpen(view, item))}. ${plural(light.members.size, "member")}, read by ${light.readers.size}`;
}

// The box that is opened or closed keeps its position on the screen.
async function changeAround(id, change) {
  const before = geometry.boxes.get(id);
  change();
  if (!(await refresh())) return;
  const after = geometry.boxes.get(id);
  if (before && after) {
    look({
      ...camera,
      x: camera.x + (before.x - after.x) * camera.zoom,
      y: camera.y + (before.y - after.y) * camera.zoom,
    });
    ensureVisible(id);
  }
  if (drawn.has(id) && graph.contains(document.activeElement)) focusBox(id);
  showDetails();
}

const flip = (set, id) => {
  if (!set.delete(id)) set.add(id);
};

const toggle = (id) =>
  changeAround(id, () => {
    flip(state.expanded, id);
    announce(`${itemName(items.get(id))} ${state.expanded.has(id) ? "opened" : "closed"}`);
  });

const unfold = (id) => changeAround(id, () => flip(state.unfolded, runOf(items.get(id))));

function unfoldAround(item) {
  const block = [item, ...ancestors(item)].find((above) => above.data.repeat?.count > 1);
  if (block) unfold(block.id);
}

// Opens all modules around an item, so that it is drawn itself, and moves the view there.
async function reveal(id) {
  const item = items.get(id);
  for (const above of [item, ...ancestors(item)]) {
    if (above.data.repeat?.index > 0) state.unfolded.add(runOf(above));
    if (above !== item) state.expanded.add(above.id);
  }
  if (!view?.boxes.has(id)) await refresh();
  select({ kind: "item", id });
  cursor = id;
  roving();
  centre(id);
}

const modulesShown = () => [root, ...view.boxes.values()].filter((item) => item.kind === "module");

async function changeLevel(open) {
  const shown = modulesShown();
  if (open)
    shown.filter((item) => !isOpen(view, item)).forEach((item) => state.expanded.add(item.id));
  else {
    shown
      .filter(
        (item) =>
          item !== root &&
          isOpen(view, item) &&
          !visibleChildren(item).some((child) => isOpen(view, child)),
      )
      .forEach((item) => state.expanded.delete(item.id));
  }
  if (await refresh(layoutBest)) fit();
}

async function openAll() {
  for (const item of items.values()) if (item.kind === "module") state.expanded.add(item.id);
  if (await refresh(layoutBest)) fit();
}

function setTheme(theme) {
  state.theme = theme;
  document.documentElement.dataset.theme = theme;
  readPaints();
  byId("theme").replaceChildren(icon(theme === "dark" ? "sun" : "moon"));
  if (view) {
    repaintColours();
    showDetails();
  }
}

const switchTheme = () => setTheme(state.theme === "dark" ? "light" : "dark");

function buildTools() {
  const menu = html(
    "details",
    { class: "menu" },
    html("summary", { title: "Save the drawing", "aria-label": "Save the drawing" }, icon("save")),
    html(
      "div",
      {},
      Object.entries(EXPORTS).map(([name, run]) =>
        html(
          "button",
          {
            type: "button",
            "data-export": name,
            onclick: () => {
              menu.open = false;
              run();
            },
          },
          name,
        ),
      ),
    ),
  );
  byId("tools").append(
    button("open", "Open one more level (e)", () => changeLevel(true)),
    button("close", "Close one level (c)", () => changeLevel(false)),
    html("button", { type: "button", class: "wide", id: "open-all", onclick: openAll }, "Open all"),
    menu,
    button("moon", "Light or dark (d)", switchTheme, { id: "theme" }),
    button("help", "Keys (?)", () => byId("help").showModal()),
  );
  byId("zooms").append(
    button("plus", "Zoom in (+)", () => zoomBy(1.3)),
    button("minus", "Zoom out (−)", () => zoomBy(1 / 1.3)),
    button("fit", "Fit (f)", fit),
  );
}

function listen() {
  const boxAt = (event) => event.target.closest?.(".box")?.getAttribute("data-id") ?? null;
  graph.addEventListener("click", (event) => {
    if (dragged) return;
    const control = event.target.closest(".switch, .times");
    const id = boxAt(event);
    if (control?.classList.contains("switch")) toggle(id);
    else if (control) unfold(id);
    else if (id) {
      focusBox(id);
      select({ kind: "item", id });
    } else select(null);
  });
  graph.addEventListener("dblclick", (event) => {
    const id = boxAt(event);
    if (id && items.get(id).kind === "module" && !event.target.closest(".switch, .times"))
      toggle(id);
  });
  graph.addEventListener("pointerover", (event) => {
    const id = boxAt(event);
    const edge = event.target.closest?.(".edge");
    if (edge) explain(edge);
    const rests = !id || isOpen(view, items.get(id)) || fingers.size;
    hover(rests ? null : { kind: "item", id });
  });
  graph.addEventListener("pointerleave", () => hover(null));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) =>
    setTheme(event.matches ? "dark" : "light"),
  );
}

const PIXELS_PER_BOX = 23000;

// Opens as many modules at first as can be read without zooming.
async function openReadably() {
  const boxes = Math.max(16, (frameSize().w * frameSize().h) / PIXELS_PER_BOX);
  for (const [levels, examples] of [
    [1, 1.35],
    [1, 1],
    [0.7, 0.9],
    [0.45, 0.6],
  ]) {
    openAtFirst(levels * boxes, examples * boxes);
    await arrangeView(layoutBest);
    if (fitting(everything(), 1).zoom > 0.66) break;
  }
  paint();
  firstLook();
}

async function openPage() {
  await seen; // in a hidden part of another page, elements have no size yet
  byId("title").textContent = drawing.title ?? "";
  const { summary = {} } = drawing;
  byId("facts").textContent = [
    `${short(summary.parameters)} parameters`,
    plural(groups.size, "group"),
    summary.locked_share ? `${percent(summary.locked_share)} locked` : "",
  ]
    .filter(Boolean)
    .join(" · ");
  buildTools();
  setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  buildLegend();
  buildBanner();
  buildHelp();
  buildTimeline();
  await openReadably();
  showDetails();
  listen();
  await followLink();
  if (drawing.tasks.length) setTask(state.task); // after reading the link, which it would overwrite
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

openPage().catch((error) => {
  progress("");
  byId("banner").hidden = false;
  byId("banner").append(
    html("p", {}, `This drawing cannot be shown in this browser: ${error.message}`),
  );
  throw error;
});
