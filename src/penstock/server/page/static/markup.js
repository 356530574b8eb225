// Trees that the server makes of Markdown, as elements: a node is a text, or [tag, attributes, children].  Only what is
// listed here is made, and text is always text: nothing is ever read as HTML.

import { copyButton, element } from "./dom.js";

const MATH = "http://www.w3.org/1998/Math/MathML";
const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const words = (text) => text.split(" ");

const TAGS = new Map([
  ...words("p h3 h4 h5 h6 ul li blockquote code em strong s hr br table thead tbody tr").map((tag) => [tag, []]),
  ...Object.entries({ a: ["href", "title"], ol: ["start"], td: ["class"], th: ["class"], span: ["class"], pre: [], input: ["checked"] }),
]); // and the attributes that each may have
const MATH_TAGS = new Set(
  words(
    "math menclose mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow mspace msqrt mstyle msub msubsup " +
      "msup mtable mtd mtext mtr munder munderover none",
  ),
);
const MATH_ATTRIBUTES = words(
  "accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop linebreak " +
    "linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines " +
    "rowspacing rspace scriptlevel separator stretchy symmetric voffset width",
);

// Makes the children of a place, from the one with this number on, those of a tree.  What is there already stays, so
// that nothing flickers and whatever is selected or scrolled stays so.  ends: nothing stands after them.
export function patch(place, nodes, from = 0, ends = true) {
  let at = place.childNodes[from] ?? null;
  for (const node of nodes) {
    if (at && at.kind === kindOf(node)) update(at, node);
    else {
      const made = make(node);
      if (at) at.replaceWith(made);
      else place.append(made);
      at = made;
    }
    at = at.nextSibling;
  }
  while (ends && at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

const kindOf = (node) => (typeof node === "string" ? "text" : `<${node[0]}>`);

function make(node) {
  const made = typeof node === "string" ? document.createTextNode("") : bare(node[0]);
  made.kind = kindOf(node);
  update(made, node);
  return made;
}

function bare(tag) {
  if (MATH_TAGS.has(tag)) return document.createElementNS(MATH, tag);
  if (!TAGS.has(tag)) return element("span");
  switch (tag) {
    case "pre":
      return codeBlock();
    case "table": {
      const made = element("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
      made.append((made.inside = element("table")));
      return made;
    }
    case "a":
      return element("a", { target: "_blank", rel: "noopener noreferrer nofollow" });
    case "input":
      return element("input", { type: "checkbox", disabled: true });
    default:
      return element(tag);
  }
}

function codeBlock() {
  const code = element("code");
  const language = element("span", { class: "language" });
  const head = element("div", { class: "code-head" }, language, copyButton(() => code.textContent));
  const made = element("div", { class: "code-block" }, head, element("pre", { tabindex: "0" }, code));
  return Object.assign(made, { inside: code, language });
}

function update(made, node) {
  if (typeof node === "string") {
    if (made.data !== node) made.data = node;
    return;
  }
  const [tag, attributes, children] = node;
  const allowed = MATH_TAGS.has(tag) ? MATH_ATTRIBUTES : (TAGS.get(tag) ?? []);
  if (made.language) made.language.textContent = attributes.lang ?? "";
  else for (const name of allowed) set(made, name, attributes[name]);
  patch(made.inside ?? made, children);
}

function set(made, name, value) {
  if (name === "href" && !SAFE_LINK.test(value ?? "")) value = undefined;
  if (value === undefined) made.removeAttribute(name);
  else if (made.getAttribute(name) !== value) made.setAttribute(name, value);
}
