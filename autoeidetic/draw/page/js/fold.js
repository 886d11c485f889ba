// Folding: only the first block of a run of equal blocks is drawn, and stands for the others.

const runOf = (item) => item.data.repeat?.of;

const isFoldedAway = (item) =>
  item.kind === "module" && item.data.repeat?.index > 0 && !state.unfolded.has(runOf(item));

const foldCount = (item) =>
  item.data.repeat?.count > 1 && item.data.repeat.index === 0 && !state.unfolded.has(runOf(item))
    ? item.data.repeat.count
    : 1;

// The item at the same position of the first block; the deepest existing one if blocks differ.
function counterpart(item, block) {
  const path = [];
  for (let inner = item; inner !== block; inner = inner.parent) path.push(inner.place);
  let twin = items.get(runOf(block));
  while (path.length && twin.children[path.at(-1)]) twin = twin.children[path.pop()];
  return twin;
}

// The item that is drawn for an item after all folds, regardless of which modules are open.
function representative(item) {
  for (;;) {
    const away = [item, ...ancestors(item)].reverse().find(isFoldedAway);
    if (!away) return item;
    item = counterpart(item, away);
  }
}
