// The conversation that is shown: asking, answering, and going back to any of its messages.

import { Answer } from "./answer.js";
import { button, byId } from "./dom.js";
import { AnswerView, UserView } from "./message.js";
import { notify } from "./notices.js";
import { newId, titleOf } from "./store.js";
import { ROOT, Tree } from "./tree.js";

const SUGGESTIONS = ["What is a penstock?", "What is 17 + 25?", "Tell me a short story."];
const SAVE_EVERY = 2000; // milliseconds, while an answer comes
const NEAR = 60; // pixels from the end that count as there

export class Chat extends EventTarget {
  constructor(store, settings, files) {
    super();
    Object.assign(this, { store, settings, files });
    this.log = byId("log");
    this.input = byId("input");
    this.running = new Map(); // answers that are coming, here or in other conversations, by the message's id
    this.editing = null; // the message that the next one stands beside
    this.views = new Map();
    this.last = 0; // when a message was made
    byId("suggestions").append(...SUGGESTIONS.map((text) => button(text, () => this.say(text), "")));
    this.listen();
    this.begin();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.input.value.trim();
      if ((text || this.files.given.length) && !this.answering) this.say(text);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        byId("composer").requestSubmit();
      } else if (event.key === "ArrowUp" && !this.input.value) {
        const mine = this.tree.path().findLast((each) => each.role === "user");
        if (mine) this.edit(mine);
      }
    });
    this.input.addEventListener("input", () => this.fit());
    byId("stop").addEventListener("click", () => this.stop());
    byId("cancel-edit").addEventListener("click", () => this.edit(null));
    byId("to-end").addEventListener("click", () => this.toEnd());
    this.log.addEventListener("scroll", () => this.showWhetherAtEnd());
    this.store.addEventListener("change", ({ detail: { id, elsewhere } }) => {
      if (elsewhere && id === this.conversation?.id && !this.answering) this.openById(id);
    });
    addEventListener("pagehide", () => {
      for (const { message } of this.running.values()) this.keepPart(message);
    });
  }

  // ── which conversation ───────────────────────────────────────────────────────────────────────────────

  // A new one; it is kept once something has been said.
  begin() {
    this.show(null, new Tree());
  }

  async openById(id) {
    const found = await this.store.get(id);
    if (found) await this.open(found);
    else this.begin();
  }

  async open(conversation) {
    const messages = await this.store.messages(conversation);
    const live = messages.map((each) => this.running.get(each.id)?.message ?? each);
    this.show(conversation, new Tree(live, conversation.chosen));
  }

  show(conversation, tree) {
    Object.assign(this, { conversation, tree });
    for (const view of this.views.values()) view.element.remove();
    this.views.clear();
    this.edit(null);
    this.showPath();
    this.toEnd();
    document.title = conversation ? `${conversation.title} · Penstock` : "Penstock";
    history.replaceState(null, "", conversation ? `#${conversation.id}` : location.pathname);
    this.dispatchEvent(new Event("open"));
  }

  // ── what is said ─────────────────────────────────────────────────────────────────────────────────────

  say(text) {
    const { editing } = this;
    const files = this.files.take();
    this.edit(null);
    this.input.value = "";
    this.fit();
    if (editing?.role === "assistant") {
      const { conversation, parent, reasoning } = editing;
      return this.add({ conversation, parent, role: "assistant", content: text, reasoning, calls: [], finish: "edited" });
    }
    if (!this.conversation) this.found(text || files[0].name);
    const parent = editing ? editing.parent : (this.tree.path().at(-1)?.id ?? ROOT);
    return this.answer(this.add({ parent, role: "user", content: text, files }));
  }

  found(text) {
    const now = Date.now();
    this.conversation = { id: newId(), title: titleOf(text), created: now, updated: now, chosen: this.tree.chosen };
    document.title = `${this.conversation.title} · Penstock`;
    history.replaceState(null, "", `#${this.conversation.id}`);
  }

  stop() {
    this.answering?.stop();
  }

  retry(message) {
    if (!this.answering) this.answer(this.tree.messages.get(message.parent));
  }

  // The same call once more, to be told something else.
  again(message) {
    if (this.answering) return;
    const calls = message.calls.map(({ id, name, arguments: given }) => ({ id, name, arguments: given }));
    this.add({ ...message, id: undefined, calls });
  }

  edit(message) {
    if (message && this.answering) return;
    const was = this.editing;
    this.editing = message;
    byId("editing").hidden = !message;
    byId("editing-what").textContent = message?.role === "assistant" ? "Editing an answer" : "Editing your message; the answer will stand beside the first";
    byId("send").textContent = message?.role === "assistant" ? "Keep" : "Send";
    if (message || was) {
      this.input.value = message?.content ?? "";
      this.files.set(message?.files ?? []);
    }
    this.fit();
    if (message) this.input.focus();
  }

  switch(message) {
    this.tree.choose(message);
    this.showPath();
    this.views.get(message.id).element.querySelector(".step:not([disabled])")?.focus();
    this.keep(this.conversation);
  }

  // ── an answer ────────────────────────────────────────────────────────────────────────────────────────

  get answering() {
    return this.tree.path().map((each) => this.running.get(each.id)).find(Boolean);
  }

  answer(asked) {
    const message = this.add({ parent: asked.id, role: "assistant", content: "", reasoning: "", calls: [], finish: null, json: this.settings.json });
    return this.run(message);
  }

  async run(message) {
    const { conversation, tree } = this;
    const update = (streaming) => this.stick(() => this.views.get(message.id)?.update(streaming));
    const frames = new Frames(() => update(true));
    const answer = new Answer(message, tree.before(message), this.settings, () => frames.ask());
    const saving = setInterval(() => this.keepPart(message), SAVE_EVERY);
    this.running.set(message.id, answer);
    this.showWhetherBusy();
    update(true);
    await answer.run();
    clearInterval(saving);
    frames.end();
    this.running.delete(message.id);
    this.showWhetherBusy();
    update(false);
    conversation.updated = Date.now();
    this.keep(conversation, message);
  }

  // ── what is shown ────────────────────────────────────────────────────────────────────────────────────

  add(fields) {
    this.last = Math.max(Date.now(), this.last + 1);
    const message = { ...fields, id: newId(), conversation: this.conversation.id, at: this.last };
    this.tree.add(message);
    this.conversation.updated = this.last;
    this.showPath();
    this.toEnd();
    this.keep(this.conversation, message);
    return message;
  }

  // What has come of an answer; whether it could be kept is told at its end.
  keepPart(message) {
    this.store.saveMessage(message).catch(() => {});
  }

  async keep(conversation, ...messages) {
    try {
      await this.store.save(conversation, ...messages);
    } catch (error) {
      notify(`The browser could not keep this conversation: ${error.message}`);
    }
  }

  // Views that stay are left alone, but for the number of their versions.
  showPath() {
    const path = this.tree.path();
    const shown = new Set(path.map((each) => each.id));
    for (const [id, view] of this.views) {
      if (shown.has(id)) continue;
      view.element.remove();
      this.views.delete(id);
    }
    for (const message of path) {
      const view = this.views.get(message.id);
      if (view) view.update(this.running.has(message.id));
      else {
        this.views.set(message.id, this.view(message));
        this.log.append(this.views.get(message.id).element);
      }
    }
    byId("welcome").hidden = path.length > 0;
    this.showWhetherBusy();
  }

  view(message) {
    const doing = {
      siblings: (each) => this.tree.siblings(each),
      onswitch: (each) => this.switch(each),
      onedit: (each) => this.edit(each),
      onretry: (each) => this.retry(each),
      oncontinue: (each) => !this.answering && this.run(each),
      onagain: (each) => this.again(each),
      onresults: (each) => {
        this.keep(this.conversation, each);
        this.views.get(each.id)?.update(false);
        this.answer(each);
      },
    };
    const view = message.role === "user" ? new UserView(message, doing) : new AnswerView(message, doing);
    if (this.running.has(message.id)) view.update(true);
    return view;
  }

  showWhetherBusy() {
    const busy = Boolean(this.answering);
    byId("send").hidden = busy;
    byId("stop").hidden = !busy;
    this.log.classList.toggle("busy", busy);
  }

  get atEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < NEAR;
  }

  toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
    this.showWhetherAtEnd();
  }

  showWhetherAtEnd() {
    byId("to-end").hidden = this.atEnd;
  }

  // Changes what is shown; whoever reads the end goes on doing so.
  stick(change) {
    const { atEnd } = this;
    change();
    if (atEnd) this.log.scrollTop = this.log.scrollHeight;
  }

  fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight + 2, innerHeight / 3)}px`;
  }
}

// Draws at most once for every frame of the screen.
class Frames {
  constructor(draw) {
    this.draw = draw;
    this.asked = 0;
  }

  ask() {
    this.asked ||= requestAnimationFrame(() => {
      this.asked = 0;
      this.draw();
    });
  }

  end() {
    cancelAnimationFrame(this.asked);
  }
}
