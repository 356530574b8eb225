// The list of conversations: searching, renaming, taking out and in, deleting and taking that back.

import { byId, download, element, iconButton } from "./dom.js";
import { notify } from "./notices.js";
import { titleOf } from "./store.js";

const DAY = 24 * 60 * 60 * 1000;

export class List {
  constructor(store, chat) {
    Object.assign(this, { store, chat });
    this.place = byId("conversations");
    this.search = byId("search");
    byId("new-chat").addEventListener("click", () => this.begin());
    byId("export-all").addEventListener("click", () => this.exportAll());
    byId("delete-all").addEventListener("click", () => this.removeAll());
    byId("import").addEventListener("click", () => byId("import-picker").click());
    byId("import-picker").addEventListener("change", ({ target }) => {
      for (const file of target.files) this.take(file);
      target.value = "";
    });
    this.search.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.show(), 120);
    });
    store.addEventListener("change", () => this.show());
    chat.addEventListener("open", () => this.mark());
    if (!store.lasts) notify("This browser keeps nothing for this page: conversations are lost when it is closed.");
    this.show();
  }

  begin() {
    this.chat.begin();
    this.onchosen?.();
    byId("input").focus();
  }

  async show() {
    const number = (this.asked = (this.asked ?? 0) + 1);
    const words = this.search.value.trim();
    const [all, found] = [await this.store.list(), words ? await this.store.search(words) : null];
    if (number !== this.asked || this.place.querySelector("input")) return; // asked again meanwhile, or a name is being typed
    const shown = found ? all.filter((each) => found.has(each.id)) : all;
    const parts = [];
    let group;
    for (const each of shown) {
      const name = age(each.updated);
      if (name !== group) parts.push(element("li", { class: "age", role: "presentation" }, (group = name)));
      parts.push(this.row(each));
    }
    if (!shown.length) parts.push(element("li", { class: "nothing" }, words ? "Nothing found." : "Conversations are kept here, in this browser."));
    this.place.replaceChildren(...parts);
    byId("found").textContent = words ? `${shown.length} found` : "";
    byId("export-all").disabled = byId("delete-all").disabled = !all.length;
    this.mark();
  }

  row(conversation) {
    const open = element("button", { type: "button", class: "title", title: conversation.title }, conversation.title);
    open.addEventListener("click", async () => {
      await this.chat.open(conversation);
      this.onchosen?.();
    });
    open.addEventListener("keydown", (event) => {
      if (event.key === "F2") this.rename(conversation, row);
      if (event.key === "Delete") this.remove(conversation);
    });
    const named = (what) => `${what} “${conversation.title}”`;
    const row = element(
      "li",
      { class: "conversation", "data-id": conversation.id },
      open,
      element(
        "span",
        { class: "tools" },
        iconButton("pencil", named("Rename"), () => this.rename(conversation, row), "rename"),
        iconButton("download", named("Export"), () => this.export([conversation], fileName(conversation.title)), "export"),
        iconButton("trash", named("Delete"), () => this.remove(conversation), "delete"),
      ),
    );
    return row;
  }

  mark() {
    const open = this.chat.conversation?.id;
    for (const row of this.place.querySelectorAll(".conversation")) {
      const here = row.dataset.id === open;
      row.classList.toggle("open", here);
      row.firstChild.toggleAttribute("aria-current", here);
    }
  }

  rename(conversation, row) {
    const input = element("input", { value: conversation.title, "aria-label": "New name", maxlength: "200" });
    let over = false;
    const end = async (keeps) => {
      if (over) return;
      over = true;
      const title = input.value.trim();
      input.remove();
      if (keeps && title && title !== conversation.title) await this.change(conversation, titleOf(title));
      await this.show();
      this.place.querySelector(`[data-id="${conversation.id}"] .title`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") end(false);
      event.stopPropagation();
    });
    input.addEventListener("blur", () => end(true));
    row.replaceChildren(input);
    input.select();
    input.focus();
  }

  async change(conversation, title) {
    const open = this.chat.conversation;
    const own = open?.id === conversation.id ? open : conversation; // the one that an answer may be changing
    own.title = title;
    await this.store.save(own);
    if (own === open) document.title = `${title} · Penstock`;
  }

  async remove(conversation) {
    const here = this.chat.conversation?.id === conversation.id;
    if (here) this.chat.stop();
    const undo = await this.store.remove(conversation);
    if (here) this.chat.begin();
    notify(`Deleted “${conversation.title}”`, {
      undo: async () => {
        await undo();
        if (here) await this.chat.openById(conversation.id);
      },
    });
  }

  async removeAll() {
    const all = await this.store.list();
    this.chat.stop();
    const undos = [];
    for (const each of all) undos.push(await this.store.remove(each));
    this.chat.begin();
    notify(`Deleted ${all.length} conversation${all.length > 1 ? "s" : ""}`, { undo: () => Promise.all(undos.map((undo) => undo())) });
  }

  async exportAll() {
    await this.export(await this.store.list(), "penstock-conversations.json");
  }

  async export(conversations, name) {
    download(name, await this.store.exported(conversations));
  }

  async take(file) {
    try {
      const found = await this.store.imported(await file.text());
      notify(`Took in ${found.length} conversation${found.length === 1 ? "" : "s"} of ${file.name}`);
    } catch (error) {
      notify(`${file.name} cannot be taken in. ${error.message}`);
    }
  }
}

const fileName = (title) => `${title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-|-$/g, "").slice(0, 60) || "conversation"}.json`;

function age(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  if (time >= midnight - 7 * DAY) return "Last seven days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}
