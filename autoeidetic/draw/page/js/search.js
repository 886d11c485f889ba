// Search by path, name, operator or group; choosing a result opens the modules around it and centres it.

const query = byId("query");
const results = byId("results");
const index = [
  ...[...items.values()]
    .filter((item) => item !== root && item.leaves.length)
    .map((item) => ({
      what: { kind: "item", id: item.id },
      name: nodeName(item),
      note: item.data.type ?? "",
      kind: item.kind === "module" ? "module" : item.data.kind,
    })),
  ...drawing.groups.map((group) => ({
    what: { kind: "group", id: group.id },
    name: group.name,
    note: `group of ${group.size}`,
    kind: "group",
  })),
].map((entry) => ({ ...entry, hay: `${entry.name} ${entry.note}`.toLowerCase() }));
let matches = [];
let current = 0;

// The rank of a match, smaller is better: whole name, start of the name, part of the path, anywhere.
function rank(entry, wanted) {
  const name = entry.name.toLowerCase();
  if (name === wanted) return entry.kind === "group" ? 1 : 0;
  if (name.startsWith(wanted)) return 2;
  if (name.includes(`.${wanted}`) || name.endsWith(wanted)) return 3;
  return entry.hay.includes(wanted) ? 4 : Infinity;
}

function find(wanted) {
  const words = wanted.trim().toLowerCase();
  if (!words) return [];
  return index
    .map((entry) => ({ entry, rank: rank(entry, words) }))
    .filter((match) => match.rank < Infinity)
    .sort((a, b) => a.rank - b.rank || a.entry.name.length - b.entry.name.length)
    .slice(0, 60)
    .map((match) => match.entry);
}

function showResults() {
  matches = find(query.value);
  current = 0;
  results.replaceChildren(
    ...matches.map((entry, place) =>
      html(
        "li",
        {
          id: `result-${place}`,
          role: "option",
          "aria-selected": "false",
          onpointerdown: (event) => {
            event.preventDefault();
            choose(place);
          },
        },
        html("span", { class: "path" }, entry.name),
        html("small", {}, entry.note),
        html("em", {}, entry.kind),
      ),
    ),
  );
  if (query.value.trim() && !matches.length)
    results.append(html("li", { class: "none" }, "Nothing found"));
  const open = Boolean(query.value.trim());
  results.hidden = !open;
  query.setAttribute("aria-expanded", String(open));
  markResult();
}

function markResult() {
  [...results.querySelectorAll("[role=option]")].forEach((option, place) => {
    option.setAttribute("aria-selected", String(place === current));
    if (place === current) option.scrollIntoView({ block: "nearest" });
  });
  query.setAttribute("aria-activedescendant", matches.length ? `result-${current}` : "");
}

function closeResults() {
  results.hidden = true;
  query.setAttribute("aria-expanded", "false");
}

async function choose(place) {
  const match = matches[place];
  if (!match) return;
  closeResults();
  if (match.what.kind === "group") showGroup(match.what.id);
  else await reveal(match.what.id);
}

query.addEventListener("input", showResults);
query.addEventListener("focus", () => {
  if (query.value) showResults();
});
query.addEventListener("blur", closeResults);
query.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps && matches.length) {
    event.preventDefault();
    current = (current + steps[event.key] + matches.length) % matches.length;
    markResult();
  } else if (event.key === "Enter") {
    choose(current);
  } else if (event.key === "Escape") {
    query.value = "";
    closeResults();
    query.blur();
  }
});
