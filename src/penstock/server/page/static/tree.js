// A conversation is a tree: whoever asks again or has an answer given again begins another branch, and none is lost.
// The path that is shown goes, at every message, to the child that was chosen last, or else to the youngest.

export const ROOT = "";

export class Tree {
  constructor(messages = [], chosen = {}) {
    this.messages = new Map();
    this.children = new Map([[ROOT, []]]);
    this.chosen = chosen;
    for (const message of [...messages].sort((left, right) => left.at - right.at)) this.put(message);
  }

  put(message) {
    this.messages.set(message.id, message);
    const family = this.children.get(message.parent);
    if (family) family.push(message.id);
    else this.children.set(message.parent, [message.id]);
  }

  add(message) {
    this.put(message);
    this.choose(message);
  }

  choose({ parent, id }) {
    this.chosen[parent] = id;
  }

  // From the first message to the last one shown.
  path() {
    const found = [];
    for (let at = this.next(ROOT); at; at = this.next(at.id)) found.push(at);
    return found;
  }

  next(parent) {
    const family = this.children.get(parent) ?? [];
    const chosen = this.chosen[parent];
    return this.messages.get(family.includes(chosen) ? chosen : family.at(-1));
  }

  // The messages before this one, which are what it answers.
  before(message) {
    const found = [];
    for (let at = this.messages.get(message.parent); at; at = this.messages.get(at.parent)) found.unshift(at);
    return found;
  }

  siblings({ parent }) {
    return (this.children.get(parent) ?? []).map((id) => this.messages.get(id));
  }
}
