// Group colours: vivid for streams (groups that several layers write), muted for groups of one layer.

const HUES = [255, 48, 152, 330, 95, 205, 25, 292, 130, 232, 355, 72];
const VIVID = {
  light: [
    [0.58, 0.16],
    [0.7, 0.13],
    [0.45, 0.12],
  ],
  dark: [
    [0.72, 0.14],
    [0.6, 0.15],
    [0.84, 0.09],
  ],
};
const QUIET = { light: [0.62, 0.08], dark: [0.63, 0.07] };
const GOLDEN = 137.508;
const TASK_LIGHTNESS = { light: [0.42, 0.82], dark: [0.52, 0.88] };

// Björn Ottosson's OKLCH to sRGB; as hex, because drawing programs read the exported SVG.
function oklch(lightness, chroma, hue) {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return `#${linear.map(toByte).join("")}`;
}

function toByte(value) {
  const bounded = Math.min(1, Math.max(0, value));
  const curved = bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
  return Math.round(255 * curved)
    .toString(16)
    .padStart(2, "0");
}

const isStream = (group) => writers(group).size > 1;

// Layers that write the channels. A norm or a depthwise filter after a layer does not count, so that
// the two do not form a stream.
function writers(group) {
  const made = (group.members ?? []).filter(
    ({ role }) => !/^(input|norm|bias|depthwise|free)/.test(role),
  );
  return new Set(made.map((member) => member.layer));
}

function rankGroups(groups) {
  const sorted = [...groups].sort((a, b) => (a.colour ?? 0) - (b.colour ?? 0));
  const ranks = new Map();
  const streams = sorted.filter(isStream);
  const vivid = streams.length ? streams : sorted; // without streams all groups are vivid
  vivid.forEach((group, rank) => ranks.set(group.id, { stream: true, rank }));
  sorted
    .filter((group) => !ranks.has(group.id))
    .forEach((group, rank) => ranks.set(group.id, { stream: false, rank }));
  return ranks;
}

function groupColour(id) {
  const known = ranks.get(id);
  if (!known) return null;
  const { stream, rank } = known;
  if (!stream) return oklch(...QUIET[state.theme], (rank * GOLDEN + 200) % 360);
  const tiers = VIVID[state.theme];
  const [lightness, chroma] = tiers[Math.floor(rank / HUES.length) % tiers.length];
  const around = rank < HUES.length * tiers.length ? 0 : rank * GOLDEN;
  return oklch(lightness, chroma, (HUES[rank % HUES.length] + around) % 360);
}

// Tasks are ordered, so their colours are a ramp from dark to bright, unlike those of groups.
function taskColour(index) {
  const part = drawing.tasks.length > 1 ? index / (drawing.tasks.length - 1) : 0;
  const [start, stop] = TASK_LIGHTNESS[state.theme];
  return oklch(start + (stop - start) * part, 0.13, 300 - 190 * part);
}

// The groups shown for a list of ids: streams first, at most `limit` groups.
function leadingGroups(ids, limit) {
  const order = (id) => (ranks.get(id)?.stream ? 0 : 1);
  return [...new Set(ids)]
    .filter((id) => ranks.has(id))
    .sort((a, b) => order(a) - order(b))
    .slice(0, limit);
}
