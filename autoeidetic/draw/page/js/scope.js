// One open module as a graph for ELK. Ids are positions, so equal blocks give equal graphs, and the
// layout of the first is reused for all of them.

const BASE = {
  "elk.algorithm": "layered",
  "elk.direction": "DOWN",
  "elk.edgeRouting": "ORTHOGONAL",
  "elk.layered.mergeEdges": "true",
  "elk.layered.considerModelOrder.strategy": "NODES_AND_EDGES",
  "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF",
  "elk.layered.nodePlacement.bk.fixedAlignment": "BALANCED",
  "elk.layered.spacing.nodeNodeBetweenLayers": "26",
  "elk.layered.spacing.edgeNodeBetweenLayers": "12",
  "elk.layered.spacing.edgeEdgeBetweenLayers": "9",
  "elk.spacing.nodeNode": "22",
  "elk.spacing.edgeNode": "14",
  "elk.spacing.edgeEdge": "10",
};
const portSide = ({ side, aside }) =>
  side === "in" ? (aside ? "WEST" : "NORTH") : aside ? "EAST" : "SOUTH";

function scopeGraph(scope, inner) {
  const places = new Map(scope.boxes.map((box, index) => [box.id, `c${index}`]));
  const ports = [...scope.ports.values()];
  const ownPort = new Map(ports.map((port, index) => [port.key, `p${index}`]));
  const name = (spot) => {
    if (!spot.port) return places.get(spot.box);
    if (spot.box === scope.item.id) return ownPort.get(spot.port);
    return `${places.get(spot.box)}${inner.get(spot.box).portNames.get(spot.port)}`;
  };
  return {
    id: "module",
    layoutOptions: { ...BASE, ...moduleOptions(scope) },
    ports: ports.map((port, index) => ({
      id: `p${index}`,
      layoutOptions: { "elk.port.side": portSide(port) },
    })),
    children: scope.boxes.map((box, index) => childGraph(box, `c${index}`, inner.get(box.id))),
    edges: [...scope.segments.values()].map((segment, index) => ({
      id: `e${index}`,
      sources: [name(segment.from)],
      targets: [name(segment.to)],
    })),
  };
}

function padding(scope) {
  if (scope.column) return { top: 0, left: 0, bottom: 0, right: 0 };
  return scope.item === root
    ? { top: 8, left: 8, bottom: 8, right: 8 }
    : { top: 42, left: 16, bottom: 18, right: 16 };
}

const minimum = (scope) => (scope.item === root || scope.column ? 0 : headingWidth(scope.item));

function moduleOptions(scope) {
  const { top, left, bottom, right } = padding(scope);
  return {
    "elk.padding": `[top=${top},left=${left},bottom=${bottom},right=${right}]`,
    "elk.portConstraints": "FIXED_SIDE",
    "elk.nodeSize.constraints": "[MINIMUM_SIZE]",
    "elk.nodeSize.minimum": `(${minimum(scope)}, 20)`,
  };
}

function childGraph(box, id, placed) {
  if (!placed) {
    const size = boxSize(box);
    return { id, width: size.w, height: size.h };
  }
  return {
    id,
    width: placed.w,
    height: placed.h,
    layoutOptions: { "elk.portConstraints": "FIXED_POS" },
    ports: placed.ports.map((port) => ({
      id: `${id}${port.name}`,
      x: port.x,
      y: port.y,
      width: 0,
      height: 0,
      layoutOptions: { "elk.port.side": portSide(port) },
    })),
  };
}

function readScope(scope, result) {
  const ports = [...scope.ports.values()].map((port, index) => {
    const { x, y } = result.ports[index];
    return { ...port, name: `p${index}`, x, y };
  });
  return {
    scope,
    w: result.width,
    h: result.height,
    ports,
    portNames: new Map(ports.map((port) => [port.key, port.name])),
    places: result.children.map(({ x, y, width, height }) => ({ x, y, w: width, h: height })),
    lines: [...scope.segments.values()].map((segment, index) => ({
      segment,
      line: points(result.edges[index]),
    })),
  };
}

function points(edge) {
  const [section] = edge.sections;
  return [section.startPoint, ...(section.bendPoints ?? []), section.endPoint];
}
