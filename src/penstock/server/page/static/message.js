// One message of a conversation as it is shown; an answer is shown while it comes.

import { button, copyButton, element, iconButton } from "./dom.js";
import { bytes, count, duration, short } from "./format.js";
import { tokensView } from "./probabilities.js";
import { Rendered } from "./rendered.js";

// ‹ 2 / 3 ›: which of several messages in the same place is shown.
function branches(message, { siblings, onswitch }) {
  const all = siblings(message);
  const at = all.indexOf(message);
  const step = (by, name, label) => {
    const made = iconButton(name, label, () => onswitch(all[at + by]), "step");
    made.disabled = !all[at + by];
    return made;
  };
  const place = element("span", { class: "note" }, `${at + 1} / ${all.length}`);
  const parts = [step(-1, "left", "Earlier version"), place, step(1, "right", "Later version")];
  return element("span", { class: "branches", role: "group", "aria-label": "Versions", hidden: all.length < 2 }, ...parts);
}

export class UserView {
  constructor(message, doing) {
    this.message = message;
    this.doing = doing;
    const files = (message.files ?? []).map(({ name, text }) =>
      element("details", { class: "file" }, element("summary", {}, name, element("small", {}, bytes(new Blob([text]).size))), element("pre", { tabindex: "0" }, text)),
    );
    this.actions = element("div", { class: "actions" });
    const text = element("div", { class: "text" }, message.content);
    text.hidden = !message.content;
    this.element = element("article", { class: "message user", "aria-label": "You" }, ...files, text, this.actions);
    this.update();
  }

  update() {
    const { message, doing } = this;
    this.actions.replaceChildren(
      branches(message, doing),
      copyButton(() => message.content),
      button("Edit", () => doing.onedit(message), "quiet edit"),
    );
  }
}

export class AnswerView {
  constructor(message, doing) {
    this.message = message;
    this.doing = doing;
    this.calls = [];
    this.summary = element("summary", {}, "Thinking");
    this.thoughts = element("div", { class: "thoughts" });
    this.thinking = element("details", { class: "thinking", hidden: true }, this.summary, this.thoughts);
    this.summary.addEventListener("click", () => (this.unfolded = true)); // from now on it is the reader's choice
    this.text = element("div", { class: "text" });
    this.rendered = new Rendered(this.text);
    this.cards = element("div", { class: "calls" });
    this.words = element("span");
    this.bar = element("progress", { max: "1", "aria-label": "Prompt read" });
    this.reading = element("p", { class: "prefill", "aria-live": "off", hidden: true }, this.words, this.bar); // many times a minute
    this.failure = element("p", { class: "error", role: "alert", hidden: true });
    this.actions = element("div", { class: "actions" });
    this.tokens = element("div", { hidden: true });
    const parts = [this.thinking, this.reading, this.text, this.tokens, this.cards, this.failure, this.actions];
    this.element = element("article", { class: "message answer", "aria-label": "Answer" }, ...parts);
    this.update(false);
  }

  update(streaming) {
    const { reasoning, content, calls, error } = this.message;
    this.element.setAttribute("aria-busy", String(streaming));
    const speaks = Boolean(content || calls.length);
    this.element.classList.toggle("waiting", streaming && !reasoning && !speaks);
    this.element.classList.toggle("streaming", streaming);
    this.read(streaming && !reasoning && !speaks);
    this.think(streaming && !speaks);
    this.rendered.show(this.message.json ? fenced(content, streaming) : content, !streaming);
    for (const call of calls.slice(this.calls.length)) this.calls.push(new CallCard(call, this.cards));
    for (const card of this.calls) card.update();
    this.askForResults(streaming);
    this.failure.hidden = !error;
    this.failure.textContent = error ?? "";
    this.actions.hidden = streaming;
    if (!streaming) this.act();
  }

  act() {
    const { message, doing } = this;
    const { finish, calls, content, reasoning, tokens } = message;
    const goesOn = finish !== "stop" && finish !== "tool_calls" && (content || reasoning) && !calls.length;
    const actions = [
      branches(message, doing),
      copyButton(() => content),
      button("Retry", () => doing.onretry(message), "quiet retry"),
      goesOn && button("Continue", () => doing.oncontinue(message), "quiet continue"),
      content && !calls.length && button("Edit", () => doing.onedit(message), "quiet edit"),
      calls.some((call) => call.result !== undefined) && button("Other results", () => doing.onagain(message), "quiet again"),
      tokens && this.toggleTokens(),
      element("span", { class: "note" }, note(message)),
    ];
    this.actions.replaceChildren(...actions.filter(Boolean));
  }

  toggleTokens() {
    const toggle = button("Probabilities", () => this.showTokens(this.tokens.hidden), "quiet show-tokens");
    toggle.setAttribute("aria-pressed", String(!this.tokens.hidden));
    return toggle;
  }

  showTokens(shown) {
    this.tokens.hidden = !shown;
    this.text.hidden = shown;
    this.tokens.replaceChildren(...(shown ? [tokensView(this.message.tokens)] : []));
    this.act();
    this.actions.querySelector(".show-tokens")?.focus();
  }

  // How far the prompt is read, while there is nothing else to show.
  read(waits) {
    const { progress, waiting } = this.message;
    this.reading.hidden = !(waits && (progress || waiting));
    if (this.reading.hidden) return;
    this.bar.hidden = !progress;
    this.words.textContent = progress ? reading(progress) : "Waiting for its turn: others are being answered";
    if (progress) this.bar.value = progress.processed / progress.total;
  }

  think(live) {
    const { reasoning, thought } = this.message;
    this.thinking.hidden = !reasoning;
    if (!reasoning) return;
    this.thoughts.textContent = reasoning.trim();
    this.summary.textContent = live ? "Thinking" : thought ? `Thought for ${short(thought)} s` : "Thought";
    this.thinking.classList.toggle("live", live);
    if (!this.unfolded) this.thinking.open = live;
    if (live) this.thoughts.scrollTop = this.thoughts.scrollHeight;
  }

  askForResults(streaming) {
    const { message } = this;
    const waits = !streaming && message.finish === "tool_calls" && message.calls.some((call) => call.result === undefined);
    if (!waits) {
      this.form?.remove();
      this.form = null;
    } else if (!this.form) {
      const fields = message.calls.map((call) =>
        element("textarea", { rows: "2", "aria-label": `Result of ${call.name}`, placeholder: `What ${call.name} returns` }),
      );
      const send = element("button", { type: "submit" }, fields.length > 1 ? "Send results" : "Send result");
      this.form = element("form", { class: "results" }, ...fields, send);
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        message.calls.forEach((call, number) => (call.result = fields[number].value));
        this.doing.onresults(message);
      });
      this.cards.append(this.form);
    }
  }
}

class CallCard {
  constructor(call, place) {
    this.call = call;
    this.given = element("pre", { tabindex: "0", "aria-label": "Arguments" });
    this.result = element("pre", { tabindex: "0", class: "result", "aria-label": "Result", hidden: true });
    const head = element("header", {}, element("span", { class: "tag" }, "tool"), element("b", {}, call.name));
    place.append(element("section", { class: "call", "aria-label": `Call of ${call.name}` }, head, this.given, this.result));
  }

  update() {
    this.given.textContent = pretty(this.call.arguments);
    this.result.hidden = this.call.result === undefined;
    this.result.textContent = this.call.result ?? "";
  }
}

// As code; while it comes its end is open, so that what is shown only grows.
function fenced(json, streaming) {
  if (!json) return "";
  return streaming ? `\`\`\`json\n${json}` : `\`\`\`json\n${pretty(json)}\n\`\`\``;
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not whole yet, or not JSON at all
  }
}

function reading({ processed, total, cache, time_ms }) {
  const rate = (1000 * (processed - cache)) / time_ms;
  const words = [`Reading ${count(processed)} of ${count(total)} tokens`];
  if (rate > 0 && Number.isFinite(rate)) words.push(`${short(rate)} tok/s`, `${duration((total - processed) / rate)} left`);
  return words.join(" · ");
}

const ENDS = { length: "cut at the limit", stopped: "stopped", edited: "edited" };

function note({ finish, timings }) {
  const words = [finish === null ? "interrupted" : ENDS[finish]];
  if (timings) {
    words.push(`${count(timings.predicted_n)} tokens`);
    if (timings.predicted_per_second) words.push(`${short(timings.predicted_per_second)} tok/s`);
    words.push(`prompt ${count(timings.prompt_n + timings.cache_n)}${timings.cache_n ? `, ${count(timings.cache_n)} cached` : ""}`);
  }
  return words.filter(Boolean).join(" · ");
}
