// The share of each task in every layer after the first `state.task` tasks.

const ownership = drawing.ownership?.layers ?? {};
const atPresent = (shares) => shares.slice(0, state.task);

// Elements that each task owns in the layers of a box, and the total of these layers.
function shareOf(leaves) {
  const layersHere = leaves.filter((leaf) => ownership[leaf.data.path]);
  const seen = new Map(layersHere.map((leaf) => [leaf.data.path, leaf]));
  const shares = drawing.tasks.map((_, task) =>
    [...seen.keys()].reduce((sum, path) => sum + (ownership[path][task] ?? 0), 0),
  );
  return { shares, all: total([...seen.values()]) };
}

// What leaves of some layers, and all of it, as texts; null where there is nothing.
function leavingOf(leaves, written = short) {
  const counts = new Map(
    leaves.map(({ id, data }) => [data.path, leaving.nodes[id]]).filter(([, found]) => found),
  );
  const sums = [0, 1, 2, 3].map((place) =>
    [...counts.values()].reduce((sum, found) => sum + found[place], 0),
  );
  const ratio = (part, all) => (all ? `${written(part)} / ${written(all)}` : null);
  return { units: ratio(sums[0], sums[1]), parameters: ratio(sums[2], sums[3]) };
}

const isGone = (item) => gone.size > 0 && item.leaves.every((leaf) => gone.has(leaf.id));

function ownershipBar(leaves, x, y, width) {
  const { shares, all } = shareOf(leaves);
  if (!all) return svg("g");
  const bar = svg("g", { class: "bar", transform: `translate(${x} ${y})` });
  bar.append(svg("rect", { class: "free", width, height: 5, rx: 2.5 }));
  bar.barOf = { shares, all, width };
  shares.forEach((_, task) =>
    bar.append(svg("rect", { class: "owned", "data-task": task, height: 5, rx: 1 })),
  );
  return bar;
}

function showTask() {
  for (const bar of layers.faces.querySelectorAll(".bar")) showBar(bar);
  for (const swatch of document.querySelectorAll("[data-task-colour]")) {
    swatch.style.setProperty("--task", taskColour(Number(swatch.getAttribute("data-task-colour"))));
  }
}

function showBar(bar) {
  const { shares, all, width } = bar.barOf;
  let x = 0;
  for (const rectangle of bar.querySelectorAll(".owned")) {
    const task = Number(rectangle.getAttribute("data-task"));
    const owned = task < state.task ? shares[task] : 0;
    const w = (width * owned) / all;
    styled(rectangle, { x: `${x}px`, width: `${w}px`, "--task": taskColour(task) });
    x += w;
  }
}

function setTask(task) {
  const last = drawing.tasks.length;
  state.task = leaving ? last : Math.min(last, Math.max(0, task));
  byId("task").value = state.task;
  const message = taskMessage();
  byId("task").setAttribute("aria-valuetext", message);
  byId("task-name").textContent = message;
  for (const tick of document.querySelectorAll(".tick")) {
    tick.classList.toggle("done", Number(tick.getAttribute("data-task-colour")) < state.task);
  }
  showTask();
  showDetails();
  writeLink();
}

function taskMessage() {
  if (leaving) {
    const [kept, all] = leaving.parameters.map(whole);
    return `${kept} of ${all} parameters leave with ${drawing.tasks[0].name}`;
  }
  if (!state.task) return "Before the first task: everything is free";
  const { shares, all } = shareOf(root.leaves);
  const free = all ? 1 - atPresent(shares).reduce((sum, share) => sum + share, 0) / all : 1;
  return `After ${drawing.tasks[state.task - 1].name} · ${percent(free)} free`;
}

function buildTimeline() {
  if (!drawing.tasks.length) return;
  const slider = html("input", {
    id: "task",
    type: "range",
    min: 0,
    max: drawing.tasks.length,
    step: 1,
    "aria-label": "Tasks learned",
    oninput: () => {
      pauseTasks();
      setTask(Number(slider.value));
    },
  });
  const ticks = drawing.tasks.map((task, index) =>
    html(
      "button",
      {
        type: "button",
        class: "tick",
        "data-task-colour": index,
        title: `${task.name}: ${whole(task.classes)} classes`,
        onclick: () => {
          pauseTasks();
          setTask(index + 1);
        },
      },
      html("i"),
      task.name,
    ),
  );
  byId("timeline").append(
    html(
      "div",
      { class: "ticks" },
      ticks,
      html("span", { class: "tick-free" }, html("i"), leaving ? "stays" : "free"),
    ),
    html(
      "div",
      { class: "player", hidden: Boolean(leaving) },
      button("play", "Play the tasks", playTasks, { id: "play" }),
      slider,
    ),
    html("p", { id: "task-name" }),
  );
  byId("timeline").hidden = false;
  footHeight = byId("timeline").offsetHeight;
}

let playing = 0;

function playTasks() {
  if (playing) return pauseTasks();
  byId("play").replaceChildren(icon("pause"));
  if (state.task === drawing.tasks.length) setTask(0);
  playing = setInterval(() => {
    setTask(state.task + 1);
    if (state.task === drawing.tasks.length) pauseTasks();
  }, 900);
}

function pauseTasks() {
  clearInterval(playing);
  playing = 0;
  byId("play").replaceChildren(icon("play"));
}
