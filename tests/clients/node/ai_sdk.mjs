// The Vercel AI SDK against a server: `node ai_sdk.mjs PROVIDER URL KEY MODEL` prints what came back as JSON.

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [provider, url, apiKey, name] = process.argv.slice(2);
const baseURL = `${url}/v1`;

const compatible = { name: "penstock", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true };
const models = {
  compatible: () => createOpenAICompatible(compatible)(name),
  openai: () => createOpenAI({ baseURL, apiKey }).responses(name),
  anthropic: () => createAnthropic({ baseURL, apiKey })(name),
};
const thinking = {
  compatible: { penstock: { reasoningEffort: "high" } },
  openai: { openai: { reasoningEffort: "high", reasoningSummary: "auto", forceReasoning: true } },
  anthropic: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
}[provider];

const weather = tool({
  description: "Get the weather for a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => ({ city, temperature: 21, sky: "sunny" }),
});

const model = models[provider]();
const asked = { model, prompt: "What is 17 + 25?", temperature: 0, maxOutputTokens: 400, maxRetries: 0 };
const armed = { ...asked, prompt: "Please get the weather for Paris.", tools: { get_weather: weather } };
const found = {};

async function streamed(options) {
  const kinds = new Set();
  const result = streamText({ ...options, onError: ({ error }) => { throw error; } });
  for await (const part of result.fullStream) kinds.add(part.type);
  return { kinds: [...kinds], text: await result.text, usage: await result.usage, result };
}

const whole = await generateText(asked);
found.whole = { text: whole.text, reason: whole.finishReason, usage: whole.usage };

const pieces = await streamed(asked);
found.pieces = { text: pieces.text, kinds: pieces.kinds, usage: pieces.usage };

const thought = await streamed({ ...asked, maxOutputTokens: 2000, providerOptions: thinking });
found.thought = { text: thought.text, reasoning: await thought.result.reasoningText, kinds: thought.kinds };

for (const [kind, run] of [["called", generateText], ["streamed_call", null]]) {
  const options = { ...armed, stopWhen: stepCountIs(3) };
  const result = run ? await run(options) : (await streamed(options)).result;
  const steps = await result.steps;
  found[kind] = {
    calls: steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input])),
    first: steps[0].text,
    text: await result.text,
  };
}

const schema = z.object({ total: z.number().int(), right: z.boolean() });
found.object = (await generateText({ ...asked, output: Output.object({ schema }) })).output;

// Given up while the prompt is read.  It is one that nobody has asked before.
const abort = new AbortController();
const prompt = `${crypto.randomUUID()}: ${"word ".repeat(6000)}`;
const abandoned = streamText({ ...asked, prompt, abortSignal: abort.signal, onError: () => {} });
setTimeout(() => abort.abort(), 300); // some providers show nothing before the first word, which is too late
for await (const part of abandoned.fullStream) if (part.type === "abort") break;
found.aborted = abort.signal.aborted;

try {
  await generateText({ ...asked, prompt: "word ".repeat(90000) });
} catch (error) {
  found.error = { status: error.statusCode, message: error.message };
}

console.log(JSON.stringify(found));
