// What stands beside the chat: the list of conversations and the engine.  On narrow screens one thing at a time.

import { byId } from "./dom.js";
import { forBrowser, load, save } from "./stored.js";

const narrow = matchMedia("(max-width: 900px)");

export class Panes extends EventTarget {
  constructor() {
    super();
    this.wide = { list: true, engine: false, ...load(forBrowser, "panes", {}) }; // quiet, until somebody wants to know
    this.shown = {};
    for (const name of ["list", "engine"]) byId(`toggle-${name}`).addEventListener("click", () => this.toggle(name));
    byId("shade").addEventListener("click", () => this.closeOverlay());
    narrow.addEventListener("change", () => this.arrange());
    this.arrange();
  }

  arrange() {
    this.shown = narrow.matches ? { list: false, engine: false } : { ...this.wide };
    this.apply();
  }

  toggle(name, shown = !this.shown[name]) {
    if (narrow.matches) this.shown = { list: false, engine: false };
    this.shown[name] = shown;
    if (!narrow.matches) save(forBrowser, "panes", (this.wide = { ...this.shown }));
    this.apply();
  }

  // On narrow screens: back to the chat.  Whether there was anything in its way.
  closeOverlay() {
    if (!narrow.matches || !(this.shown.list || this.shown.engine)) return false;
    this.arrange();
    byId("input").focus();
    return true;
  }

  search() {
    this.toggle("list", true);
    byId("search").focus();
    byId("search").select();
  }

  apply() {
    for (const [name, shown] of Object.entries(this.shown)) {
      byId(name).hidden = !shown;
      byId(`toggle-${name}`).setAttribute("aria-expanded", String(shown));
    }
    byId("shade").hidden = !(narrow.matches && this.shown.list);
    document.body.classList.toggle("engine-shown", Boolean(this.shown.engine));
    this.dispatchEvent(new Event("change"));
  }
}
