// Talking to the server: with the key, if it wants one, and reading its streams.

import { byId } from "./dom.js";
import { forBrowser, forTab, load, remove, save } from "./stored.js";

let asking = null;
let key = load(forTab, "key", null) ?? load(forBrowser, "key", null);

export class Refused extends Error {}

// A response that is a success.  Asks for the key when the server does; raises Refused with the server's own words.
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const used = key;
    const headers = used ? { Authorization: `Bearer ${used}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await reach(path, {
      method: body === undefined ? "GET" : "POST",
      body: body === undefined ? undefined : JSON.stringify(body),
      headers,
      signal,
      cache: "no-store",
    });
    if (response.ok) return response;
    if (response.status !== 401) throw new Refused(await reason(response));
    if (key === used) await (asking ??= askForKey(used !== null).finally(() => (asking = null)));
  }
}

async function reach(path, request) {
  try {
    return await fetch(path, request);
  } catch (error) {
    if (request.signal?.aborted) throw error;
    throw new Refused("The server cannot be reached. Is it still running?");
  }
}

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

function askForKey(again) {
  const door = byId("door");
  byId("door-text").textContent = again ? "That key does not open it. Another one?" : "Whoever started the server has it.";
  byId("door-key").value = "";
  door.showModal();
  return new Promise((resolve) => {
    const closed = () => {
      const given = byId("door-key").value.trim();
      if (!given) return door.showModal(); // nothing works without
      door.removeEventListener("close", closed);
      key = given;
      const keeps = byId("door-keep").checked;
      remove(forBrowser, "key");
      save(keeps ? forBrowser : forTab, "key", key);
      resolve();
    };
    door.addEventListener("close", closed);
  });
}

// The payloads of a stream of server-sent events, until its end.  oncomment: told of what is said between them.
// Raises Refused if the stream ends before it has said so and ends: it has to.
export async function* eventsOf(response, { oncomment, ends = false } = {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n");
        const text = lines.filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
        if (text === "[DONE]") return;
        if (text) yield JSON.parse(text);
        else if (lines[0].startsWith(":")) oncomment?.(lines[0].slice(1).trim());
      }
    }
  } catch (error) {
    if (error instanceof TypeError) throw new Refused("The connection to the server broke.");
    throw error;
  } finally {
    reader.cancel().catch(() => {});
  }
  if (ends) throw new Refused("The server ended the answer before it was whole.");
}
