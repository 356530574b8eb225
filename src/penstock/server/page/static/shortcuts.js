// Keys, and the overlay that lists them.

import { byId, copyText, element } from "./dom.js";
import { notify } from "./notices.js";

// Those with Control (⌘ on a Mac) work everywhere, those of a single key wherever nothing is being typed.
const typing = (target) => target.closest?.("input, textarea, select, [contenteditable]");

export class Shortcuts {
  constructor({ chat, list, settings, panes }) {
    this.settings = settings;
    const lastAnswer = () => chat.tree.path().findLast((each) => each.role === "assistant");
    const turn = (by) => {
      const all = chat.tree.path().map((each) => chat.tree.siblings(each));
      const place = all.findLastIndex((each) => each.length > 1);
      if (place < 0 || chat.answering) return;
      const shown = chat.tree.path()[place];
      const next = all[place][all[place].indexOf(shown) + by];
      if (next) chat.switch(next);
    };
    this.keys = [
      { keys: "n", control: "Shift+O", label: "New chat", run: () => list.begin() },
      { keys: "s", control: "K", label: "Search conversations", run: () => panes.search() },
      { keys: "l", control: "B", label: "Show or hide the conversations", run: () => panes.toggle("list") },
      { keys: "e", label: "Show or hide the engine", run: () => panes.toggle("engine") },
      { keys: ",", control: ",", label: "Settings", run: () => settings.open() },
      { keys: "/", label: "Write a message", run: () => byId("input").focus() },
      { keys: "r", label: "Another answer", run: () => lastAnswer() && chat.retry(lastAnswer()) },
      { keys: "c", label: "Copy the last answer", run: () => lastAnswer() && copyText(lastAnswer().content).then(() => notify("Copied")) },
      { keys: "[", label: "Earlier version of the last message that has several", run: () => turn(-1) },
      { keys: "]", label: "Later version", run: () => turn(1) },
      { keys: "?", control: "/", label: "This list", run: () => this.help() },
    ];
    this.fixed = [
      ["Enter", "Send"],
      ["Shift Enter", "New line"],
      ["↑", "Edit your last message, while nothing is written"],
      ["Esc", "Stop the answer, or leave what is open"],
      ["F2 · Delete", "Rename or delete the conversation with the focus"],
    ];
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (panes.closeOverlay()) return;
      if (chat.answering) chat.stop();
      else if (chat.editing) chat.edit(null);
    });
    byId("open-help").addEventListener("click", () => this.help());
  }

  press(event) {
    if (event.defaultPrevented || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
    const control = event.ctrlKey || event.metaKey;
    const wanted = `${event.shiftKey && control ? "Shift+" : ""}${control ? event.key.toUpperCase() : event.key}`;
    const found = this.keys.find((each) => (control ? each.control === wanted : each.keys === wanted));
    if (!found || (!control && (typing(event.target) || !this.settings.values.keys))) return;
    event.preventDefault();
    found.run();
  }

  help() {
    const control = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";
    const rows = this.keys.map((each) => {
      const names = [this.settings.values.keys && each.keys, each.control && `${control} ${each.control.replace("+", " ")}`];
      return [names.filter(Boolean), each.label];
    });
    byId("help-keys").replaceChildren(
      ...[...this.fixed.map(([key, label]) => [[key], label]), ...rows]
        .filter(([names]) => names.length)
        .flatMap(([names, label]) => [
          element("dt", {}, ...names.flatMap((name, place) => [place ? " or " : "", element("kbd", {}, name)])),
          element("dd", {}, label),
        ]),
    );
    byId("help").showModal();
  }
}
