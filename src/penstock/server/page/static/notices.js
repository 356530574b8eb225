// Short words at the edge of the page, which go by themselves; with something to undo, if there is.

import { button, byId, element } from "./dom.js";

const SECONDS = 10;

export function notify(words, { undo } = {}) {
  const made = element("div", { class: "toast" }, element("span", {}, words));
  let timer = setTimeout(() => made.remove(), 1000 * SECONDS);
  const keep = () => clearTimeout(timer);
  const letGo = () => (timer = setTimeout(() => made.remove(), 1000 * SECONDS));
  for (const name of ["pointerenter", "focusin"]) made.addEventListener(name, keep);
  for (const name of ["pointerleave", "focusout"]) made.addEventListener(name, letGo);
  if (undo) {
    made.append(
      button("Undo", async () => {
        made.remove();
        await undo();
      }),
    );
  }
  byId("toasts").append(made);
}
