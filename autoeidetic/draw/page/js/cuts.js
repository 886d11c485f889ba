// Where a long chain is cut into columns: between boxes where only one value crosses, so that a
// single line leads from the foot of a column to the head of the next.

const GAP = 52;
const LANE = 10; // for each further line between two columns
const TURN = 14; // room above and below the columns
const MOST_LANES = 6;
const LONELY = 60;

// For each place, the number of values that cross from the boxes before it to those after it.
function crossings(scope) {
  const place = new Map(scope.boxes.map((box, index) => [box.id, index]));
  const inside = (spot) => spot.box !== scope.item.id;
  const reach = new Map();
  for (const { from, to } of scope.segments.values()) {
    const start = inside(from) ? place.get(from.box) : 0;
    const stop = inside(to) ? place.get(to.box) : scope.boxes.length - 1;
    if (stop < start) return []; // two closed modules that feed each other
    const known = reach.get(from.key) ?? { start, stop };
    reach.set(from.key, { start, stop: Math.max(stop, known.stop) });
  }
  const counts = new Array(scope.boxes.length - 1).fill(0);
  for (const { start, stop } of reach.values())
    for (let i = start; i < stop; i += 1) counts[i] += 1;
  return counts;
}

// A module that reads a value from outside is not bent: both halves would have to read it from above.
const hasOwnPort = (scope) =>
  [...scope.segments.values()].some(({ from }) => from.box === scope.item.id);

// Height and width of the boxes of a column, measured in the layout without columns.
function extent(spots, start, stop) {
  const column = spots.slice(start, stop + 1);
  const over = (pick) => Math.max(...column.map(pick));
  const under = (pick) => Math.min(...column.map(pick));
  return {
    h: over((c) => c.y + c.height) - under((c) => c.y),
    w: over((c) => c.x + c.width) - under((c) => c.x),
  };
}

const columnExtents = (spots, ends) =>
  ends.map((stop, i) => extent(spots, i ? ends[i - 1] + 1 : 0, stop));

// The last box of each column, when columns are filled one after another up to a height.
function pack(spots, cuts, limit) {
  const ends = [];
  let start = 0;
  for (const [at, cut] of cuts.entries()) {
    const next = cuts[at + 1] ?? spots.length - 1;
    if (extent(spots, start, next).h > limit) {
      ends.push(cut);
      start = cut + 1;
    }
  }
  return [...ends, spots.length - 1];
}

// The columns that give the largest picture: the whole drawing must fit its frame, a module that is
// too tall should be about square.
function bestColumns(scope, result) {
  const whole = scope.item === root;
  const counts = crossings(scope);
  if (!counts.length || (!whole && result.height <= tall)) return [];
  const spots = result.children;
  const ratio = whole ? frameSize().w / frameSize().h : 1.2;
  const size = (ends) => {
    const extents = columnExtents(spots, ends);
    const w = extents.reduce((sum, column) => sum + column.w + GAP, 0);
    const lonely = extents.some((column) => column.h < LONELY) ? 1.3 : 1; // a line for one small box
    return lonely * Math.max(w / ratio, ...extents.map((column) => column.h + 2 * TURN));
  };
  const smaller = (a, b) => (size(b) < size(a) ? b : a);
  const cuts = counts.flatMap((count, place) => (count <= 1 ? [place] : []));
  let best = [spots.length - 1];
  for (let limit = result.height; cuts.length && limit > 200; limit *= 0.93)
    best = smaller(best, pack(spots, cuts, limit));
  const bent = (hasOwnPort(scope) ? [] : bends(counts, spots)).reduce(smaller, [spots.length - 1]);
  if (size(bent) < 0.75 * size(best)) best = bent;
  return best.length > 1 && size(best) < 0.9 * result.height ? best : [];
}

// In a U-Net many values cross at every place: it is bent once, where its two halves are about
// equal, and the values cross side by side.
function bends(counts, spots) {
  return counts.flatMap((count, place) =>
    count > 1 && count <= MOST_LANES ? [[place, spots.length - 1]] : [],
  );
}
