// A little Markdown, made into elements: code, lists, headings, bold, emphasis, inline code.  What is not
// understood stays as it was written, and nothing is ever read as HTML.

import { copyButton, element } from "./dom.js";

// Shows text in a place; called again with longer text it touches only the blocks that are new or have changed.
export class Markdown {
  constructor(place) {
    this.place = place;
    this.shown = [];
  }

  show(text) {
    const found = blocks(text);
    let same = 0;
    while (same < found.length && same < this.shown.length && equal(found[same], this.shown[same])) same += 1;
    while (this.place.childElementCount > same) this.place.lastElementChild.remove();
    for (const block of found.slice(same)) this.place.append(render(block));
    this.shown = found;
  }
}

const equal = (left, right) =>
  left.kind === right.kind && left.detail === right.detail && left.lines.join("\n") === right.lines.join("\n");

const FENCE = /^\s*(```+|~~~+)\s*([\w+#.-]*)\s*$/;
const HEADING = /^(#{1,6})\s+(.*)$/;
const BULLET = /^\s*[-*+]\s+(.*)$/;
const NUMBER = /^\s*(\d{1,9})[.)]\s+(.*)$/;

function blocks(text) {
  const found = [];
  let current = null;
  const begin = (kind, detail, ...lines) => found.push((current = { kind, detail, lines }));
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      begin("code", fence[2]);
      for (at += 1; at < lines.length && !lines[at].trim().startsWith(fence[1]); at += 1) current.lines.push(lines[at]);
      current = null;
      continue;
    }
    const heading = HEADING.exec(line);
    const bullet = BULLET.exec(line);
    const number = NUMBER.exec(line);
    if (!line.trim()) current = null;
    else if (heading) {
      begin("heading", heading[1].length, heading[2]);
      current = null;
    } else if (bullet || number) {
      const kind = bullet ? "bullets" : "numbers";
      const item = bullet ? bullet[1] : number[2];
      if (current?.kind === kind) current.lines.push(item);
      else begin(kind, number ? Number(number[1]) : 0, item);
    } else if (current && (current.kind === "bullets" || current.kind === "numbers") && /^\s/.test(line)) {
      current.lines.push(`${current.lines.pop()}\n${line.trim()}`);
    } else if (current?.kind === "paragraph") current.lines.push(line);
    else begin("paragraph", 0, line);
  }
  return found;
}

function render({ kind, detail, lines }) {
  switch (kind) {
    case "code": {
      const code = element("code", {}, lines.join("\n"));
      const head = element("div", { class: "code-head" }, element("span", {}, detail), copyButton(() => code.textContent));
      return element("div", { class: "code-block" }, head, element("pre", { tabindex: "0" }, code));
    }
    case "heading":
      return element(`h${Math.min(6, detail + 2)}`, {}, ...inline(lines[0]));
    case "bullets":
      return element("ul", {}, ...lines.map((line) => element("li", {}, ...inline(line))));
    case "numbers":
      return element("ol", { start: detail }, ...lines.map((line) => element("li", {}, ...inline(line))));
    default:
      return element("p", {}, ...inline(lines.join("\n")));
  }
}

const INLINE = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)|\*\*(?=\S)([^]*?\S)\*\*|\*(?=[^\s*])([^*]*[^\s*])\*/;

function inline(text) {
  const found = [];
  for (let match; (match = INLINE.exec(text)); text = text.slice(match.index + match[0].length)) {
    found.push(text.slice(0, match.index));
    if (match[2] !== undefined) found.push(element("code", {}, match[2]));
    else if (match[3] !== undefined) found.push(element("strong", {}, ...inline(match[3])));
    else found.push(element("em", {}, ...inline(match[4])));
  }
  return [...found, text];
}
