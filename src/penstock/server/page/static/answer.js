// One answer: how it is asked for, and what becomes of it while it comes.

import { call, eventsOf } from "./api.js";
import { fileBlock } from "./files.js";

// The text of a user's message as the model reads it.
export const spoken = ({ content, files = [] }) => [...files.map(fileBlock), content].filter(Boolean).join("\n\n");

export class Answer {
  // before: the messages that it answers.  onchange: told of everything that is new.
  constructor(message, before, settings, onchange) {
    this.message = message;
    this.onchange = onchange;
    this.stopping = new AbortController();
    this.body = { messages: asked(before, message, settings), stream: true, return_progress: true, ...settings.fields() };
  }

  stop() {
    this.stopping.abort();
  }

  // Until it is whole, stopped or has failed; the message says which.
  async run() {
    const { message } = this;
    message.finish = null;
    delete message.error;
    try {
      const response = await call("/v1/chat/completions", { body: this.body, signal: this.stopping.signal });
      const oncomment = (words) => {
        message.waiting = words === "waiting";
        this.onchange();
      };
      for await (const chunk of eventsOf(response, { oncomment, ends: true })) {
        this.take(chunk);
        this.onchange();
      }
    } catch (error) {
      if (this.stopping.signal.aborted) message.finish = "stopped";
      else {
        message.error = error.message;
        message.finish ??= "failed";
      }
    }
    for (const name of ["began", "progress", "waiting"]) delete message[name];
  }

  // Adds a piece of the stream to the message.
  take({ choices, timings, prompt_progress, error }) {
    const { message } = this;
    if (error) throw new Error(error.message);
    const [choice] = choices;
    if (!choice) return;
    const { reasoning_content = "", content = "", tool_calls = [] } = choice.delta;
    message.waiting = false;
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
    for (const part of ["reasoning_content", "content"]) {
      for (const each of choice.logprobs?.[part] ?? []) (message.tokens ??= []).push(compact(each, part === "content"));
    }
    message.progress = prompt_progress ?? (reasoning_content || content ? undefined : message.progress);
    message.finish = choice.finish_reason ?? message.finish;
    message.timings = timings ?? message.timings;
  }
}

// A token that was drawn: its text, its log-probability, the others that were likely, whether it is of the answer.
const compact = ({ token, logprob, top_logprobs }, spoken) => [token, logprob, top_logprobs.map((each) => [each.token, each.logprob]), spoken];

function asked(before, message, { system }) {
  const messages = [...(system ? [{ role: "system", content: system }] : []), ...before.flatMap(asRequested)];
  if (message.content || message.reasoning) messages.push({ ...spokenBefore(message), prefix: true }); // it goes on
  return messages;
}

const spokenBefore = ({ content, reasoning }) => ({ role: "assistant", content, ...(reasoning && { reasoning_content: reasoning }) });

// A message, and what tools returned, in the words of the API.
function asRequested(message) {
  if (message.role === "user") return [{ role: "user", content: spoken(message) }];
  const { content, calls } = message;
  if (!content && !calls.length) return [];
  const answer = spokenBefore(message);
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
