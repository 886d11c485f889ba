// A module in columns: its boxes are distributed, laid out column by column, and joined again.

// The boxes of each column with their segments; values that cross go through ports named "via".
function splitScope(scope, ends) {
  const columns = ends.map((stop, i) => ({
    item: scope.item,
    boxes: scope.boxes.slice(i ? ends[i - 1] + 1 : 0, stop + 1),
    segments: new Map(),
    ports: new Map(),
    column: true,
  }));
  const columnOf = new Map(columns.flatMap((column, i) => column.boxes.map((box) => [box.id, i])));
  const own = scope.item.id;
  const main = mainValue(scope, columns);
  for (const segment of scope.segments.values()) {
    const first = segment.from.box === own ? 0 : columnOf.get(segment.from.box);
    const last = segment.to.box === own ? ends.length - 1 : columnOf.get(segment.to.box);
    for (let i = first; i <= last; i += 1) {
      const via = (side) => viaSpot(own, side, segment.from.key, main);
      const from = i === first ? segment.from : via("in");
      const to = i === last ? segment.to : via("out");
      for (const spot of [from, to]) if (spot.box === own) addOwnPort(scope, columns[i], spot);
      addPiece(columns[i], segment, from, to);
    }
  }
  return columns;
}

// Of several values that cross, the latest one goes from foot to head, the others sideways.
function mainValue(scope, columns) {
  const first = new Set(columns[0].boxes.map((box) => box.id));
  const made = (key) => scope.boxes.findIndex((box) => key.split("|")[0] === box.id);
  const crossing = [...scope.segments.values()].filter(
    ({ from, to }) => first.has(from.box) && !first.has(to.box),
  );
  return columns.length > 2
    ? null
    : crossing.map(({ from }) => from.key).sort((a, b) => made(b) - made(a))[0];
}

function viaSpot(own, side, key, main) {
  const aside = main && main !== key ? "aside" : "";
  const port = `${side}|via${aside}|${key}`;
  return { key: port, box: own, port };
}

function addOwnPort(scope, column, spot) {
  const side = spot.port.startsWith("in|") ? "in" : "out";
  const aside = spot.port.startsWith(`${side}|viaaside|`);
  column.ports.set(spot.port, scope.ports.get(spot.port) ?? { key: spot.port, side, aside });
}

function addPiece(column, segment, from, to) {
  const key = `${from.key}>${to.key}`;
  const known = column.segments.get(key);
  if (known) known.edges.push(...segment.edges);
  else
    column.segments.set(key, {
      ...segment,
      key: `${segment.key}~${key}`,
      from,
      to,
      edges: [...segment.edges],
    });
}

// Joins the columns side by side into one module.
function joinColumns(scope, columns) {
  const pad = padding(scope);
  const [top, height] = [pad.top + TURN, Math.max(...columns.map((column) => column.h))];
  const gap = GAP + LANE * columns[0].ports.filter((port) => port.aside).length;
  let x = pad.left;
  for (const column of columns) {
    Object.assign(column, { x, y: top });
    x += column.w + gap;
  }
  const joined = {
    scope,
    w: Math.max(x - gap + pad.right, minimum(scope)),
    h: top + height + TURN + pad.bottom,
  };
  const found = columns.flatMap((column) =>
    column.ports.map((port) => ({ ...port, x: port.x + column.x })),
  );
  joined.at = new Map(
    ["in", "out"].flatMap((side) => [
      ...middle(
        found.filter(({ key }) => !isVia(key)),
        side,
        joined,
      ),
    ]),
  );
  const shifted = (column, point) => ({ x: point.x + column.x, y: point.y + column.y });
  const lines = columns.flatMap((column) =>
    column.lines.map(({ segment, line }) => ({
      segment,
      line: throughBorder(
        segment,
        line.map((point) => shifted(column, point)),
        joined,
      ),
    })),
  );
  return {
    ...joined,
    places: columns.flatMap((column) =>
      column.places.map((place) => ({ ...place, ...shifted(column, place) })),
    ),
    lines: [
      ...lines,
      ...columns.slice(1).flatMap((column, i) => wires(columns[i], column, shifted)),
    ],
    ...ownPorts(scope, joined),
  };
}

const isVia = (port) => /^(in|out)\|via(aside)?\|/.test(port ?? "");

const WIDE = 1500;

// The ports of a wide module in columns lie in its middle, so that such modules are stacked and do
// not form a staircase; a line along the border leads to the columns.
function middle(ports, side, joined) {
  const own = ports.filter((port) => port.side === side);
  const far = (index) => joined.w / 2 + (index - (own.length - 1) / 2) * 14;
  return new Map(
    own.map((port, index) => [port.key, own.length > 3 || joined.w < WIDE ? port.x : far(index)]),
  );
}

function throughBorder({ from, to }, line, joined) {
  const own = joined.scope.item.id;
  const leads = (spot) => spot.box === own && !isVia(spot.port);
  const [first, last] = [line[0], line.at(-1)];
  const [high, low] = [padding(joined.scope).top - 8, joined.h - padding(joined.scope).bottom + 6];
  const before = leads(from)
    ? [
        { x: joined.at.get(from.port), y: 0 },
        { x: joined.at.get(from.port), y: high },
        { x: first.x, y: high },
      ]
    : [];
  const after = leads(to)
    ? [
        { x: last.x, y: low },
        { x: joined.at.get(to.port), y: low },
        { x: joined.at.get(to.port), y: joined.h },
      ]
    : [];
  return [...before, ...line, ...after];
}

function ownPorts(scope, joined) {
  const ports = [...scope.ports.values()].map(({ key, side }, index) => ({
    key,
    side,
    name: `p${index}`,
    x: joined.at.get(key),
    y: side === "in" ? 0 : joined.h,
  }));
  return { ports, portNames: new Map(ports.map((port) => [port.key, port.name])) };
}

// The lines from one column to the next.
function wires(before, after, shifted) {
  const leaving = before.ports.filter(({ key, side }) => side === "out" && isVia(key));
  return leaving.flatMap((port, lane) => {
    const entry = after.ports.find(({ key }) => key === port.key.replace("out|", "in|"));
    if (!entry) return [];
    const [start, stop] = [shifted(before, port), shifted(after, entry)];
    const aside = port.aside ? before.x + before.w + 14 + LANE * lane : after.x - GAP / 2;
    const bends = port.aside
      ? [
          [aside, start.y],
          [aside, stop.y],
        ]
      : [
          [start.x, start.y + TURN],
          [aside, start.y + TURN],
          [aside, stop.y - TURN],
          [stop.x, stop.y - TURN],
        ];
    const pieces = before.lines
      .filter(({ segment }) => segment.to.port === port.key)
      .map(({ segment }) => segment);
    const segment = {
      ...pieces[0],
      key: `${pieces[0].key}~wire`,
      to: { port: port.key },
      edges: pieces.flatMap((piece) => piece.edges),
    };
    return [{ segment, line: [start, ...bends.map(([x, y]) => ({ x, y })), stop] }];
  });
}
