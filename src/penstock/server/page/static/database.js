// The browser's database: conversations, and the messages of each.  In memory where the browser keeps nothing.

const NAME = "penstock";
const CONVERSATIONS = "conversations";
const MESSAGES = "messages";

const done = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

export async function openDatabase() {
  try {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
      request.result.createObjectStore(MESSAGES, { keyPath: "id" }).createIndex("conversation", "conversation");
    };
    return new Kept(await done(request));
  } catch {
    return new Memory();
  }
}

class Kept {
  constructor(database) {
    this.database = database;
    this.lasts = true;
  }

  conversations() {
    return done(this.store(CONVERSATIONS).getAll());
  }

  messages(conversation) {
    if (conversation === undefined) return done(this.store(MESSAGES).getAll());
    return done(this.store(MESSAGES).index("conversation").getAll(conversation));
  }

  put(conversations, messages) {
    return this.write((transaction) => {
      for (const each of conversations) transaction.objectStore(CONVERSATIONS).put(each);
      for (const each of messages) transaction.objectStore(MESSAGES).put(each);
    });
  }

  async remove(conversation) {
    const messages = await this.messages(conversation);
    return this.write((transaction) => {
      transaction.objectStore(CONVERSATIONS).delete(conversation);
      for (const each of messages) transaction.objectStore(MESSAGES).delete(each.id);
    });
  }

  store(name) {
    return this.database.transaction(name).objectStore(name);
  }

  write(change) {
    const transaction = this.database.transaction([CONVERSATIONS, MESSAGES], "readwrite");
    change(transaction);
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  }
}

class Memory {
  constructor() {
    this.lasts = false;
    this.stores = { conversations: new Map(), messages: new Map() };
  }

  async conversations() {
    return structuredClone([...this.stores.conversations.values()]);
  }

  async messages(conversation) {
    const all = [...this.stores.messages.values()];
    return structuredClone(all.filter((each) => conversation === undefined || each.conversation === conversation));
  }

  async put(conversations, messages) {
    for (const each of structuredClone(conversations)) this.stores.conversations.set(each.id, each);
    for (const each of structuredClone(messages)) this.stores.messages.set(each.id, each);
  }

  async remove(conversation) {
    this.stores.conversations.delete(conversation);
    for (const each of await this.messages(conversation)) this.stores.messages.delete(each.id);
  }
}
