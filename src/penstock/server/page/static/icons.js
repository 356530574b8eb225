// Drawings of one line, 16 by 16.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = {
  attach: "M10.5 4.5 5.8 9.2a1.8 1.8 0 0 0 2.5 2.5l5-5a3.3 3.3 0 0 0-4.7-4.7l-5 5a4.8 4.8 0 0 0 6.8 6.8l3.6-3.6",
  close: "M4 4l8 8M12 4l-8 8",
  download: "M8 2v8m0 0 3-3m-3 3L5 7M2.5 11v2.5h11V11",
  left: "M10 3 5 8l5 5",
  pencil: "M3 13l.6-2.8L10.8 3a1.3 1.3 0 0 1 1.8 0l.4.4a1.3 1.3 0 0 1 0 1.8L5.8 12.4 3 13Z",
  right: "M6 3l5 5-5 5",
  trash: "M3 4.5h10M6.5 4.5V3h3v1.5M4.5 4.5l.6 8.5h5.8l.6-8.5M7 7v3.5M9 7v3.5",
};

export function icon(name) {
  const made = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({ viewBox: "0 0 16 16", width: "16", height: "16", "aria-hidden": "true" })) made.setAttribute(key, value);
  const shape = document.createElementNS(SVG, "path");
  for (const [key, value] of Object.entries({ d: SHAPES[name], fill: "none", stroke: "currentColor", "stroke-width": "1.4", "stroke-linecap": "round", "stroke-linejoin": "round" })) shape.setAttribute(key, value);
  made.append(shape);
  return made;
}
