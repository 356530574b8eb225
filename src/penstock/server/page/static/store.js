// Conversations: kept, found, taken out and in.  Told to other tabs, so that all show the same list.

import { openDatabase } from "./database.js";
import { ROOT } from "./tree.js";

const FORMAT = "penstock-conversations";
const TITLE = 80; // letters
const ROLES = new Set(["user", "assistant"]);

export const newId = () =>
  globalThis.crypto?.randomUUID?.() ?? `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`; // plain HTTP has no UUIDs

export class Store extends EventTarget {
  static async open() {
    return new Store(await openDatabase());
  }

  constructor(database) {
    super();
    this.database = database;
    this.lasts = database.lasts;
    this.tabs = "BroadcastChannel" in globalThis ? new BroadcastChannel("penstock") : null;
    this.tabs?.addEventListener("message", ({ data }) => this.tell(data, false));
  }

  tell(id, others = true) {
    this.dispatchEvent(new CustomEvent("change", { detail: { id, elsewhere: !others } }));
    if (others) this.tabs?.postMessage(id);
  }

  // Latest first.
  async list() {
    return (await this.database.conversations()).sort((left, right) => right.updated - left.updated);
  }

  messages(conversation) {
    return this.database.messages(conversation.id);
  }

  async get(id) {
    return (await this.database.conversations()).find((each) => each.id === id);
  }

  async save(conversation, ...messages) {
    await this.database.put([conversation], messages);
    this.tell(conversation.id);
  }

  // Messages alone: while an answer comes, nothing else changes.
  async saveMessage(message) {
    await this.database.put([], [message]);
  }

  // What undoes it.
  async remove(conversation) {
    const messages = await this.messages(conversation);
    await this.database.remove(conversation.id);
    this.tell(conversation.id);
    return () => this.save(conversation, ...messages);
  }

  // The ids of conversations in which all words occur.
  async search(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const texts = new Map((await this.list()).map((each) => [each.id, [each.title]]));
    for (const { conversation, content, reasoning = "" } of await this.database.messages()) texts.get(conversation)?.push(content, reasoning);
    const has = (parts) => {
      const all = parts.join("\n").toLowerCase();
      return words.every((word) => all.includes(word));
    };
    return new Set([...texts].filter(([, parts]) => has(parts)).map(([id]) => id));
  }

  // ── files ────────────────────────────────────────────────────────────────────────────────────────────

  async exported(conversations) {
    const found = [];
    for (const each of conversations) found.push({ ...each, messages: await this.messages(each) });
    return JSON.stringify({ format: FORMAT, version: 1, conversations: found }, null, 1);
  }

  // Adds the conversations of a file under ids of their own.  Returns them; raises Error with what is wrong.
  async imported(text) {
    const found = readExport(text);
    for (const { messages, ...conversation } of found) await this.database.put([conversation], messages);
    this.tell(found[0]?.id);
    return found;
  }
}

export function titleOf(text) {
  const line = text.trim().split("\n")[0].trim();
  return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line || "Untitled";
}

function readExport(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`It is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error(`Its "format" is not "${FORMAT}"`);
  if (file.version !== 1) throw new Error(`Its version is ${file.version}, this page reads 1`);
  return file.conversations.map(renewed);
}

// A conversation with new ids, and nothing in it but what belongs there.
function renewed(given, number) {
  const wrong = (what) => new Error(`Conversation ${number + 1}: ${what}`);
  if (!Array.isArray(given?.messages)) throw wrong("it has no messages");
  const ids = new Map([[ROOT, ROOT]]);
  for (const each of given.messages) ids.set(String(each?.id), newId());
  const id = newId();
  const messages = given.messages.map((each, place) => {
    if (!ROLES.has(each?.role) || typeof each.content !== "string") throw wrong(`message ${place + 1} has no role or content`);
    if (!ids.has(each.parent)) throw wrong(`message ${place + 1} follows one that is not there`);
    const texts = (values, names) =>
      (Array.isArray(values) ? values : []).map((value) => Object.fromEntries(names.map((name) => [name, String(value?.[name] ?? "")])));
    const kept = { id: ids.get(String(each.id)), conversation: id, parent: ids.get(each.parent), role: each.role, content: each.content };
    kept.at = Number(each.at) || place;
    if (each.role === "user") return { ...kept, files: texts(each.files, ["name", "text"]) };
    const calls = texts(each.calls, ["id", "name", "arguments"]);
    calls.forEach((call, index) => {
      if (typeof each.calls[index].result === "string") call.result = each.calls[index].result;
    });
    const finish = typeof each.finish === "string" ? each.finish : "stop";
    return { ...kept, reasoning: String(each.reasoning ?? ""), calls, finish };
  });
  const chosen = {};
  for (const [parent, child] of Object.entries(given.chosen ?? {})) {
    if (ids.has(parent) && ids.has(child)) chosen[ids.get(parent)] = ids.get(child);
  }
  const now = Date.now();
  return { id, title: titleOf(String(given.title ?? "")), created: Number(given.created) || now, updated: Number(given.updated) || now, chosen, messages };
}
