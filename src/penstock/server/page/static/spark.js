// A line of the last minutes, small enough to stand under a number.

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 100;
const HEIGHT = 24;
const FEWEST = 60; // values that fill the width; more are drawn closer together

const make = (name, attributes) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

export class Spark {
  constructor(length = 180) {
    this.length = length;
    this.values = [];
    this.area = make("path", { class: "area" });
    this.line = make("path", { class: "line", "vector-effect": "non-scaling-stroke" });
    const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
    this.element = make("svg", { class: "spark", viewBox, preserveAspectRatio: "none", "aria-hidden": "true" });
    this.element.append(this.area, this.line);
  }

  get highest() {
    return Math.max(0, ...this.values.filter(Number.isFinite));
  }

  // What is not a number continues the line where it was.  most: the value at the top, else the highest seen.
  push(value, most) {
    this.values.push(Number.isFinite(value) ? value : (this.values.at(-1) ?? 0));
    if (this.values.length > this.length) this.values.shift();
    const top = most ?? (this.highest || 1);
    const step = WIDTH / (Math.max(FEWEST, this.values.length) - 1);
    const first = WIDTH - step * (this.values.length - 1);
    const points = this.values.map(
      (each, at) => `${(first + at * step).toFixed(2)} ${(HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, each / top)).toFixed(2)}`,
    );
    const line = `M${points.join("L")}`;
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", `${line}L${WIDTH} ${HEIGHT}L${first.toFixed(2)} ${HEIGHT}Z`);
  }
}
