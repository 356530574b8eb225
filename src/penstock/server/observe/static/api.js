// Talking to the server: with the key, if it wants one, and reading its streams.

import { byId } from "./dom.js";

const NAME = "penstock.key";
let asking = null;
let key = null;
try {
  key = sessionStorage.getItem(NAME);
} catch {}

export class Refused extends Error {}

// A response that is a success.  Asks for the key when the server does; raises Refused with the server's own words.
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const used = key;
    const headers = used ? { Authorization: `Bearer ${used}` } : {};
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
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

async function reason(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the server answered ${response.status}`;
  }
}

function askForKey(again) {
  const door = byId("door");
  byId("door-text").textContent = again
    ? "That key does not open it. Another one?"
    : "It is kept until this tab is closed.";
  byId("door-key").value = "";
  door.showModal();
  return new Promise((resolve) => {
    const closed = () => {
      const given = byId("door-key").value.trim();
      if (!given) return door.showModal(); // nothing works without
      door.removeEventListener("close", closed);
      key = given;
      try {
        sessionStorage.setItem(NAME, key);
      } catch {}
      resolve();
    };
    door.addEventListener("close", closed);
  });
}

// The payloads of a stream of server-sent events, until its end.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split("\n").filter((line) => line.startsWith("data:"));
        const text = lines.map((line) => line.slice(5).trimStart()).join("\n");
        if (text === "[DONE]") return;
        if (text) yield JSON.parse(text);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
