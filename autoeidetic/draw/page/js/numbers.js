// The notation of numbers in boxes and in the panel.

const UNITS = [
  [1e12, "T"],
  [1e9, "B"],
  [1e6, "M"],
  [1e3, "k"],
];

function short(number) {
  for (const [size, unit] of UNITS) {
    if (number >= size) return `${(number / size).toFixed(number < 10 * size ? 1 : 0)}${unit}`;
  }
  return String(number ?? 0);
}

const grouped = new Intl.NumberFormat("en-US");
const whole = (number) => grouped.format(number ?? 0);

const plural = (number, word) => `${whole(number)} ${word}${number === 1 ? "" : "s"}`;

const percent = (part) => `${(100 * part).toFixed(part > 0 && part < 0.1 ? 1 : 0)} %`;

const dimensions = (shape) => (shape ?? []).join("×");

// The first dimension is the batch of the traced example.
const channels = (shape) => dimensions((shape ?? []).length > 1 ? shape.slice(1) : shape);
