// The conversation: what was said, asking for the next answer, and taking back.

import { call, eventsOf } from "./api.js";
import { byId, element } from "./dom.js";
import { AnswerView, userView } from "./message.js";
import { forTab, load, save } from "./stored.js";

const SUGGESTIONS = ["What is a penstock?", "What is 17 + 25?", "Tell me a short story."];

export class Chat {
  constructor(settings) {
    this.settings = settings;
    this.log = byId("log");
    this.input = byId("input");
    this.running = null; // stops the answer that is coming
    this.editing = null; // the message that the next one takes the place of
    this.messages = load(forTab, "messages", []);
    this.views = [];
    byId("suggestions").append(
      ...SUGGESTIONS.map((text) => element("button", { type: "button", onclick: () => this.say(text) }, text)),
    );
    this.listen();
    this.showAll();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      const text = this.input.value.trim();
      if (text && !this.running) this.say(text);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    this.input.addEventListener("input", () => this.fit());
    byId("stop").addEventListener("click", () => this.stop());
    byId("new-chat").addEventListener("click", () => this.begin());
    byId("cancel-edit").addEventListener("click", () => this.edit(null));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (this.running) this.stop();
      else if (this.editing) this.edit(null);
    });
  }

  // ── what is said ─────────────────────────────────────────────────────────────────────────────────────

  say(text) {
    if (this.editing) this.cut(this.messages.indexOf(this.editing));
    this.edit(null);
    this.add({ role: "user", content: text });
    this.answer();
  }

  begin() {
    this.stop();
    this.cut(0);
    this.edit(null);
    this.input.focus();
  }

  stop() {
    this.running?.abort();
  }

  retry(message) {
    if (this.running) return;
    this.cut(this.messages.indexOf(message));
    this.answer();
  }

  edit(message) {
    if (message && this.running) return;
    this.editing = message;
    byId("editing").hidden = !message;
    this.input.value = message?.content ?? "";
    this.fit();
    if (message) this.input.focus();
  }

  // ── an answer ────────────────────────────────────────────────────────────────────────────────────────

  async answer() {
    const message = { role: "assistant", reasoning: "", content: "", calls: [], finish: null };
    const view = this.add(message);
    const stopping = (this.running = new AbortController());
    this.busy(true);
    const frames = new Frames(() => this.stick(() => view.update(true)));
    frames.ask();
    try {
      const body = { messages: this.request(), stream: true, return_progress: true, ...this.settings.fieldsOfRequest() };
      const response = await call("/v1/chat/completions", { body, signal: stopping.signal });
      for await (const chunk of eventsOf(response)) {
        take(message, chunk);
        frames.ask();
      }
    } catch (error) {
      if (stopping.signal.aborted) message.finish = "stopped";
      else message.error = error.message;
    } finally {
      frames.end();
      delete message.began;
      delete message.progress;
      if (this.running === stopping) {
        this.running = null;
        this.busy(false);
      }
      this.stick(() => view.update(false));
      this.keep();
    }
  }

  // The messages as the API wants them.
  request() {
    const { system } = this.settings;
    return [...(system ? [{ role: "system", content: system }] : []), ...this.messages.flatMap(asRequested)];
  }

  // ── what is shown ────────────────────────────────────────────────────────────────────────────────────

  add(message) {
    this.messages.push(message);
    const view = this.show(message);
    this.keep();
    this.log.scrollTop = this.log.scrollHeight;
    return view;
  }

  show(message) {
    const view =
      message.role === "user"
        ? userView(message, { onedit: () => this.edit(message) })
        : new AnswerView(message, {
            onretry: () => this.retry(message),
            onresults: () => {
              view.update(false);
              this.answer();
            },
          });
    this.views.push(view);
    this.log.append(view.element);
    byId("welcome").hidden = true;
    return view;
  }

  showAll() {
    for (const message of this.messages) this.show(message);
    this.log.scrollTop = this.log.scrollHeight;
  }

  // Takes back this message and all after it.
  cut(from) {
    this.messages.splice(from);
    for (const view of this.views.splice(from)) view.element.remove();
    byId("welcome").hidden = this.messages.length > 0;
    this.keep();
  }

  keep() {
    save(forTab, "messages", this.messages);
  }

  busy(yes) {
    byId("send").hidden = yes;
    byId("stop").hidden = !yes;
  }

  // Changes what is shown; whoever reads the end goes on doing so.
  stick(change) {
    const atEnd = this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
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

// Adds a piece of a stream to the answer.
function take(message, { choices, timings, prompt_progress, error }) {
  if (error) throw new Error(error.message);
  const [choice] = choices;
  if (!choice) return;
  const { reasoning_content = "", content = "", tool_calls = [] } = choice.delta;
  if (reasoning_content) message.began ??= performance.now();
  else if ((content || tool_calls.length) && message.began && !message.thought) {
    message.thought = (performance.now() - message.began) / 1000;
  }
  message.reasoning += reasoning_content ?? "";
  message.content += content ?? "";
  for (const { index, id, function: piece } of tool_calls) {
    if (id) message.calls[index] = { id, name: piece.name, arguments: "" };
    message.calls[index].arguments += piece.arguments;
  }
  message.progress = prompt_progress ?? (reasoning_content || content ? undefined : message.progress);
  message.finish = choice.finish_reason;
  message.timings = timings ?? message.timings;
}

function asRequested({ role, content, reasoning, calls }) {
  if (role === "user") return [{ role, content }];
  if (!content && !calls.length) return [];
  const answer = { role, content, ...(reasoning && { reasoning_content: reasoning }) };
  if (calls.length) {
    answer.tool_calls = calls.map((each) => ({
      id: each.id,
      type: "function",
      function: { name: each.name, arguments: each.arguments },
    }));
  }
  const results = calls.map((each) => ({ role: "tool", tool_call_id: each.id, content: each.result ?? "no result" }));
  return [answer, ...results];
}
