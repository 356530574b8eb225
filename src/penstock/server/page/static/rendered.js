// Markdown in a place, rendered by the server; plain text wherever that has not come yet, or never comes.
//
// While a text grows, only its last block can still change, so only that is sent again, and never for more than a
// tenth of the time.  When the text is whole all of it is rendered once more, since links may be explained at its end.

import { call } from "./api.js";
import { element } from "./dom.js";
import { patch } from "./markup.js";

const PAUSE = 100; // milliseconds between two renderings, at least
const SHARE = 9; // times as long as the last rendering took
const LONGEST = 1 << 15; // characters that are sent at a time
const MOST_KEPT = 500; // renderings that are remembered
const INTO = new Set(["P", "LI", "UL", "OL", "BLOCKQUOTE", "H3", "H4", "H5", "H6"]);

export class Rendered {
  constructor(place) {
    this.place = place;
    this.text = "";
    this.whole = false;
    this.running = false;
    this.begin();
  }

  begin() {
    this.settled = 0; // characters of the text in blocks that cannot change any more
    this.kept = 0; // and how many blocks those are
    this.covered = 0; // characters that are rendered
    this.stuck = false; // the rest stays plain
    this.generation = (this.generation ?? 0) + 1;
  }

  // whole: nothing will be added.
  show(text, whole = true) {
    if (text === this.text && whole === this.whole) return;
    if (whole || !text.startsWith(this.text)) this.begin();
    this.text = text;
    this.whole = whole;
    if (this.covered || !this.place.childElementCount || !whole) this.showRest();
    this.wake?.();
    this.run();
  }

  get behind() {
    return !this.stuck && this.covered < this.text.length;
  }

  async run() {
    if (this.running) return;
    this.running = true;
    while (this.behind) {
      const began = performance.now();
      const number = this.generation;
      try {
        await this.render(number);
      } catch {
        if (number === this.generation) this.giveUp();
      }
      const pause = this.whole ? 0 : Math.max(PAUSE, SHARE * (performance.now() - began));
      if (pause) await new Promise((resolve) => ((this.wake = resolve), setTimeout(resolve, pause)));
    }
    this.running = false;
    this.showRest();
  }

  // Words that are not laid out are still words.
  giveUp() {
    if (this.whole) {
      this.begin();
      patch(this.place, []);
    }
    this.stuck = true;
  }

  async render(number) {
    const { text, settled, kept } = this;
    const part = partOf(text, settled);
    const blocks = await markdown(part, this.whole);
    if (number !== this.generation) return;
    const toEnd = settled + part.length === text.length;
    this.rest?.remove();
    patch(this.place, blocks.map(([, node]) => node), kept, toEnd);
    this.open = blocks.at(-1)?.[2];
    this.covered = settled + part.length;
    if (blocks.length > 1) {
      this.kept += blocks.length - 1;
      this.settled += offsetOf(part, blocks.at(-1)[0]);
      if (!toEnd) this.covered = this.settled;
    } else if (!toEnd) this.stuck = true; // one block that is longer than what can be sent
    if (toEnd || this.stuck) this.showRest();
  }

  // What has no rendering yet goes on, as it is written, where the rendered part ends.
  showRest() {
    this.rest?.remove();
    const text = this.text.slice(this.covered);
    if (!text.trim()) return;
    this.rest = element("span", { class: "rest" }, text);
    let into = this.place;
    for (let last = into.lastElementChild; last; last = into.lastElementChild) {
      if (last.language && this.open) into = last.inside;
      if (!INTO.has(last.tagName)) break;
      into = last;
    }
    into.append(this.rest);
  }
}

// From where the settled part ends, at most so much as can be sent: up to the end of a line.
function partOf(text, begin) {
  const part = text.slice(begin, begin + LONGEST);
  const cut = begin + part.length < text.length ? part.lastIndexOf("\n") + 1 : 0;
  return cut ? part.slice(0, cut) : part;
}

// Where a line of a text begins.
function offsetOf(text, line) {
  const ends = /\r\n?|\n/g;
  for (let passed = 0; passed < line && ends.exec(text); passed += 1);
  return ends.lastIndex;
}

const remembered = new Map();
const waiting = [];
let asking = 0;

// The blocks of a text: [line, tree, whether it is code without an end] each.  Two texts at a time, so that answers
// have connections too.
async function markdown(text, keep) {
  if (remembered.has(text)) return remembered.get(text);
  if (asking >= 2) await new Promise((resolve) => waiting.push(resolve));
  asking += 1;
  try {
    const { blocks } = await (await call("/dashboard/markdown", { body: { text } })).json();
    if (keep) remembered.set(text, blocks);
    if (remembered.size > MOST_KEPT) remembered.delete(remembered.keys().next().value);
    return blocks;
  } finally {
    asking -= 1;
    waiting.shift()?.();
  }
}
