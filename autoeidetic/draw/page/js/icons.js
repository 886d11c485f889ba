// Icons of 16 by 16 units.

const ICONS = {
  plus: "M8 4v8M4 8h8",
  minus: "M4 8h8",
  fit: "M3 6V3h3M10 3h3v3M13 10v3h-3M6 13H3v-3",
  sun: "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M12.6 3.4l-1.1 1.1M4.5 11.5l-1.1 1.1",
  moon: "M13 9.6A5.5 5.5 0 1 1 6.4 3a4.5 4.5 0 0 0 6.6 6.6z",
  help: "M5.8 6.2a2.2 2.2 0 1 1 3.2 2c-.7.4-1 .8-1 1.6M8 12.2v.1",
  lock: "M4.5 7.5h7v5h-7zM6 7.5V5.6a2 2 0 0 1 4 0v1.9",
  warn: "M8 2.5l6 10.5H2zM8 6.6v3M8 11.2v.1",
  copy: "M6 6h7v7H6zM3.5 10H3V3h7v.5",
  play: "M5.5 3.8l6.5 4.2l-6.5 4.2z",
  pause: "M5.5 4v8M10.5 4v8",
  save: "M8 2.5v7M5 7l3 3l3-3M3 13h10",
  open: "M4 6.5l4-3.5l4 3.5M4 9.5l4 3.5l4-3.5",
  close: "M4 3l4 3.5L12 3M4 13l4-3.5l4 3.5",
};

const iconPath = (name, attributes = {}) =>
  svg("path", { d: ICONS[name], class: "icon", ...attributes });

const icon = (name) =>
  svg(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    iconPath(name),
  );

const button = (name, label, onclick, attributes = {}) =>
  html(
    "button",
    { type: "button", title: label, "aria-label": label, onclick, ...attributes },
    icon(name),
  );
