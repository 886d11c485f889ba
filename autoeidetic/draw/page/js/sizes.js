// The sizes of boxes, computed from their texts.

const FONT =
  'Inter, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const TITLE = `600 13px ${FONT}`;
const SMALL = `400 11px ${FONT}`;
const PILL = `500 11.5px ${FONT}`;
const WIDEST = 210;
const pen = document.createElement("canvas").getContext("2d");
const widths = new Map();

function textWidth(text, font) {
  const key = `${font}|${text}`;
  if (!widths.has(key)) {
    pen.font = font;
    widths.set(key, pen.measureText(text).width);
  }
  return widths.get(key);
}

function shorten(text, font, width) {
  if (textWidth(text, font) <= width) return text;
  let cut = text.length;
  while (cut > 1 && textWidth(`${text.slice(0, cut)}…`, font) > width) cut -= 1;
  return `${text.slice(0, cut)}…`;
}

const operatorName = (type) => (type ?? "").replace(/^\w+\./, "").split(".")[0];

const hasLock = (item) => item.leaves.some((leaf) => leaf.data.locked);

const isPill = (item) =>
  item.kind === "node" && ["operator", "input", "output"].includes(item.data.kind);

function boxText(item, count) {
  const data = item.data;
  if (isPill(item)) return { title: pillName(data), kind: "", detail: pillDetail(data) };
  const kept = leaving && leavingOf(item.leaves);
  const size = kept?.parameters ?? (data.parameters ? short(data.parameters) : "");
  if (item.kind === "node") {
    const detail =
      data.kind === "failure"
        ? (drawing.failure?.message ?? "")
        : [kept?.units ? `${kept.units} units` : channels(data.shape), size]
            .filter(Boolean)
            .join("  ·  ");
    return { title: data.label || data.path || data.type, kind: data.type ?? "", detail };
  }
  const nodes = plural(item.leaves.length, "node");
  return {
    title: data.name || data.path || drawing.title,
    kind: data.type ?? "",
    detail: [size, nodes].filter(Boolean).join("  ·  "),
    times: count > 1 ? `× ${count}` : "",
  };
}

// In a Sequential an activation is named "1", which says less than its type.
const pillName = ({ label, type }) =>
  label && !/^\d+$/.test(label) ? label : operatorName(type) || type;

const pillDetail = (data) => (data.kind === "operator" ? "" : channels(data.shape));

const even = (width) => 2 * Math.ceil(width / 2); // so that the centre is on a whole pixel

function boxSize(item) {
  const text = boxText(item, foldCount(item));
  if (isPill(item)) {
    const extra = text.detail ? textWidth(text.detail, SMALL) + 8 : 0;
    return { w: even(Math.min(WIDEST, textWidth(text.title, PILL) + extra + 34)), h: 26 };
  }
  const badge =
    (text.times ? textWidth(text.times, TITLE) + 24 : 0) +
    (item.kind === "module" ? 26 : 0) +
    (hasLock(item) || item.data.kind === "failure" ? 18 : 0);
  const first = textWidth(text.title, TITLE) + 8 + textWidth(text.kind, SMALL) + badge;
  const widest = Math.max(first, textWidth(text.detail, SMALL)) + 34;
  return {
    w: even(Math.min(WIDEST + badge, Math.max(128, widest))),
    h: drawing.tasks.length ? 54 : 46,
  };
}

// An open module is at least as wide as its heading.
function headingWidth(item) {
  const text = boxText(item, foldCount(item));
  const words = [
    [text.title, TITLE],
    [text.kind, SMALL],
  ].map(([word, font]) => Math.min(WIDEST, textWidth(word, font)));
  return even(words[0] + words[1] + (text.times ? 120 : 64));
}
