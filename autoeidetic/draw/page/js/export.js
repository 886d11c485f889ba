// Exports: the view as SVG or PNG, the drawing as JSON.

const KEPT = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-linecap",
  "fill-opacity",
  "opacity",
];
const LETTERS = [
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
  "paint-order",
  "stroke-linejoin",
];

// A picture for other programs: only plain attributes, no style sheet and no variables.
function plainSvg() {
  const margin = 24;
  const box = [-margin, -margin, geometry.w + 2 * margin, geometry.h + 2 * margin];
  const { level } = graph.dataset;
  dress(true);
  graph.dataset.level = "near";
  const picture = svg("svg", { xmlns: SVG, viewBox: box.join(" "), width: box[2], height: box[3] });
  const ground = getComputedStyle(byId("canvas")).backgroundColor;
  picture.append(svg("title", {}, drawing.title ?? ""), rect("", ...box, 0, { fill: ground }));
  for (const part of [graph.querySelector("defs"), ...world.children])
    picture.append(flatten(part));
  graph.dataset.level = level;
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}`;
}

function flatten(element) {
  const look = getComputedStyle(element);
  if (look.display === "none") return document.createComment("");
  const copied = document.createElementNS(SVG, element.localName);
  for (const { name, value } of element.attributes) {
    if (!/^(class|style|tabindex|role|aria-|data-)/.test(name)) copied.setAttribute(name, value);
  }
  const isText = element.localName === "text";
  for (const name of [...KEPT, ...(isText ? LETTERS : [])]) {
    const value = look.getPropertyValue(name);
    if (value) copied.setAttribute(name, value.replace(/url\("#hatch"\)/, "url(#hatch)"));
  }
  if (look.transform !== "none" && element.style.transform)
    copied.setAttribute("transform", look.transform);
  if (element.localName === "rect")
    for (const name of ["x", "width"])
      copied.setAttribute(name, parseFloat(look.getPropertyValue(name)) || 0);
  for (const child of element.childNodes) {
    copied.append(child.nodeType === Node.TEXT_NODE ? child.textContent : flatten(child));
  }
  return copied;
}

const MOST_PIXELS = 16e6; // browsers refuse a larger canvas

async function png() {
  const url = URL.createObjectURL(new Blob([plainSvg()], { type: "image/svg+xml" }));
  const image = new Image();
  image.src = url;
  await image.decode();
  const scale = Math.min(2, Math.sqrt(MOST_PIXELS / (image.width * image.height)));
  const canvas = html("canvas", {
    width: Math.round(image.width * scale),
    height: Math.round(image.height * scale),
  });
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  return new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
}

function download(blob, ending) {
  const name = (drawing.title || "drawing").replace(/[^\w.-]+/g, "_");
  const href = URL.createObjectURL(blob);
  html("a", { href, download: `${name}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10000);
  announce(`Saved ${name}.${ending}`);
}

const EXPORTS = {
  SVG: () => download(new Blob([plainSvg()], { type: "image/svg+xml" }), "svg"),
  PNG: async () => download(await png(), "png"),
  JSON: () =>
    download(new Blob([JSON.stringify(drawing, null, 1)], { type: "application/json" }), "json"),
};

// Paper is white and has no viewport: the picture is fitted to the page while printing.
let themeOnScreen = null;

addEventListener("beforeprint", () => {
  themeOnScreen = state.theme;
  setTheme("light");
  dress(true);
  graph.setAttribute("viewBox", `-8 -8 ${geometry.w + 16} ${geometry.h + 16}`);
  graph.dataset.level = "near";
  world.removeAttribute("transform");
});
addEventListener("afterprint", () => {
  graph.removeAttribute("viewBox");
  setTheme(themeOnScreen);
  look(camera);
});
