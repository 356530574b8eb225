// One message of a conversation as it is shown; an answer is shown while it comes.

import { copyButton, element } from "./dom.js";
import { count, duration, short } from "./format.js";
import { Markdown } from "./markdown.js";

export function userView(message, { onedit }) {
  const edit = element("button", { class: "quiet edit", type: "button", onclick: onedit }, "Edit");
  const actions = element("div", { class: "actions" }, copyButton(() => message.content), edit);
  const text = element("div", { class: "text" }, message.content);
  return { element: element("article", { class: "message user", "aria-label": "You" }, text, actions) };
}

export class AnswerView {
  constructor(message, { onretry, onresults }) {
    this.message = message;
    this.onresults = onresults;
    this.calls = [];
    this.summary = element("summary", {}, "Thinking");
    this.thoughts = element("div", { class: "thoughts" });
    this.thinking = element("details", { class: "thinking", hidden: true }, this.summary, this.thoughts);
    this.summary.addEventListener("click", () => (this.unfolded = true)); // from now on it is the reader's choice
    this.text = element("div", { class: "text" });
    this.markdown = new Markdown(this.text);
    this.cards = element("div", { class: "calls" });
    this.reading = element("p", { class: "reading", "aria-live": "off", hidden: true }); // many times a minute
    this.failure = element("p", { class: "error", role: "alert", hidden: true });
    this.note = element("span", { class: "note" });
    const retry = element("button", { class: "quiet retry", type: "button", onclick: onretry }, "Retry");
    this.actions = element("div", { class: "actions" }, copyButton(() => message.content), retry, this.note);
    this.element = element(
      "article",
      { class: "message answer", "aria-label": "Answer" },
      this.thinking,
      this.reading,
      this.text,
      this.cards,
      this.failure,
      this.actions,
    );
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
    this.markdown.show(content);
    for (const call of calls.slice(this.calls.length)) this.calls.push(new CallCard(call, this.cards));
    for (const card of this.calls) card.update();
    this.askForResults(streaming);
    this.failure.hidden = !error;
    this.failure.textContent = error ?? "";
    this.actions.hidden = streaming;
    this.note.textContent = note(this.message);
  }

  // How far the prompt is read, while there is nothing else to show.
  read(waits) {
    const { progress } = this.message;
    this.reading.hidden = !(waits && progress);
    if (!this.reading.hidden) this.reading.textContent = reading(progress);
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
    const waits = !streaming && this.message.finish === "tool_calls" && this.message.calls.some((call) => call.result === undefined);
    if (!waits) {
      this.form?.remove();
      this.form = null;
    } else if (!this.form) {
      const fields = this.message.calls.map((call) =>
        element("textarea", { rows: "2", "aria-label": `Result of ${call.name}`, placeholder: `What ${call.name} returns` }),
      );
      const send = element("button", { type: "submit" }, fields.length > 1 ? "Send results" : "Send result");
      this.form = element("form", { class: "results" }, ...fields, send);
      this.form.addEventListener("submit", (event) => {
        event.preventDefault();
        this.message.calls.forEach((call, number) => (call.result = fields[number].value));
        this.onresults();
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

const ENDS = { length: "cut at the limit", stopped: "stopped" };

function note({ finish, timings }) {
  const words = [ENDS[finish]];
  if (timings) {
    words.push(`${count(timings.predicted_n)} tokens`);
    if (timings.predicted_per_second) words.push(`${short(timings.predicted_per_second)} tok/s`);
    words.push(`prompt ${count(timings.prompt_n + timings.cache_n)}${timings.cache_n ? `, ${count(timings.cache_n)} cached` : ""}`);
  }
  return words.filter(Boolean).join(" · ");
}
