// The instruments: what the server's pictures of the engine say, second by second.

import { byId, element } from "./dom.js";
import { bytes, bytesParts, count, percent, percentNumber, short } from "./format.js";
import { showMachines } from "./machines.js";
import { Spark } from "./spark.js";

const WINDOW = 4; // pictures that rates are told from

const TILES = [
  { id: "decode", label: "Decode", hint: "Tokens of answers for each second that the engine worked" },
  { id: "prefill", label: "Prefill", hint: "Tokens of prompts for each second that prompts were read" },
  { id: "hits", label: "Hit rate", hint: "Experts that were in memory, or on the GPU, when they were needed", most: 1 },
  { id: "disk", label: "Disk", hint: "Bytes read for each second" },
  { id: "stall", label: "Stall", hint: "Share of the time that steps waited for the disk, or the GPU for the others", most: 1 },
  { id: "busy", label: "Engine", hint: "Share of the time that steps were running", most: 1 },
];

const TIERS = {
  experts: "Experts",
  ram: "Experts in RAM",
  dense: "Dense weights",
  sessions: "Sessions",
  requests: "Requests",
  work: "Working memory",
  program: "Program",
  gpu: "The whole GPU",
  disk: "Sessions on disk",
};

export class Panel {
  constructor() {
    this.pictures = [];
    this.last = {};
    this.tiles = Object.fromEntries(TILES.map((tile) => [tile.id, new Tile(tile)]));
    byId("tiles").append(...Object.values(this.tiles).map((tile) => tile.element));
  }

  // Rates are followed also while nobody looks.
  take(picture) {
    this.pictures.push(picture);
    if (this.pictures.length > WINDOW) this.pictures.shift();
    this.rates(picture);
  }

  show(picture) {
    this.memory(picture);
    this.queue(picture);
    showMachines(picture, this.pictures[0] ?? picture);
    this.about(picture.about);
  }

  // Numbers before and after a break of the stream do not belong together.
  restart() {
    this.pictures = [];
  }

  // ── rates ────────────────────────────────────────────────────────────────────────────────────────────

  rates(now) {
    const before = this.pictures[0];
    // How much a counter has grown; they begin again at nothing when weights come back to memory.
    const grown = (of) => (of(now) >= of(before) ? of(now) - of(before) : 0);
    const seconds = grown((each) => each.time);
    const worked = grown((each) => each.queue.engine_seconds);
    const idle = now.queue.active === 0;

    if (now.tokens && before.tokens) {
      const reading = grown((each) => each.tokens.prompt_seconds);
      this.speed("decode", grown((each) => each.tokens.generated), worked, idle);
      this.speed("prefill", grown((each) => each.tokens.read), reading, idle);
    } else {
      this.tiles.decode.show(NaN, "–", "", "metrics are off");
      this.tiles.prefill.show(NaN, "–", "", "metrics are off");
    }

    const share = (part) => (seconds ? Math.min(1, part / seconds) : 0);
    this.share("busy", share(worked), `${count(now.queue.steps)} steps${graphs(now.gpu)}`);
    if (now.storage && before.storage) this.storage(now, grown, seconds, share);
    else if (now.tiers && before.tiers) this.tiered(now, grown, seconds, share);
    else {
      const where = now.gpu ? "all on the GPU" : "mapped file";
      const why = now.state === "ready" ? where : "no weights";
      for (const id of ["hits", "disk", "stall"]) this.tiles[id].show(NaN, "–", "", why);
    }
  }

  speed(id, tokens, seconds, idle) {
    const tile = this.tiles[id];
    if (seconds > 0) this.last[id] = tokens / seconds;
    else if (idle) this.last[id] = 0; // else a step is under way, which will tell when it ends
    const value = this.last[id] ?? 0;
    tile.spark.push(value);
    tile.show(value, short(value), "tok/s", `best ${short(tile.spark.highest)}`);
  }

  share(id, value, note) {
    this.tiles[id].spark.push(value, 1);
    this.tiles[id].show(value, percentNumber(value), "%", note);
  }

  storage(now, grown, seconds, share) {
    const { storage } = now;
    this.hits((each) => [each.storage.hits, each.storage.misses], now, grown, (ever) => `${percent(ever)} in all`);
    this.flow((each) => each.storage.disk_bytes, grown, seconds, `${bytes(storage.disk_bytes)} in all`);
    const stalled = (each) => each.storage.stall_seconds + each.storage.dense_stall_seconds;
    this.share("stall", share(grown(stalled)), `${short(stalled(now))} s in all`);
  }

  // Some of the experts are on a GPU: what it has, what crosses to it, and how long it waits in the middle of layers.
  tiered(now, grown, seconds, share) {
    const { tiers } = now;
    const byCpu = () => `on the GPU; CPU ${percent(tiers.on_host / (tiers.device_hits + tiers.device_misses))}`;
    this.hits((each) => [each.tiers.device_hits, each.tiers.device_misses], now, grown, byCpu);
    this.tiles.disk.title.textContent = "Link";
    const read = seconds ? grown((each) => each.tiers.disk_bytes) / seconds : 0;
    this.flow((each) => each.tiers.link_bytes, grown, seconds, read ? `to the GPU; disk ${bytes(read)}/s` : "to the GPU");
    const waited = (each) => each.tiers.host_stall_seconds + each.tiers.link_stall_seconds;
    const forLink = waited(now) ? `, ${percent(tiers.link_stall_seconds / waited(now))} for the link` : "";
    this.share("stall", share(grown(waited)), `of the GPU${forLink}`);
  }

  // counts: what was found and what was not; words: beside the share ever found
  hits(counts, now, grown, words) {
    const [found, missed] = counts(now);
    const hits = grown((each) => counts(each)[0]);
    const asked = hits + grown((each) => counts(each)[1]);
    const ever = found / (found + missed);
    if (asked) this.last.hits = hits / asked;
    else this.last.hits ||= ever;
    this.tiles.hits.spark.push(this.last.hits, 1);
    const known = Number.isFinite(this.last.hits);
    const [text, unit] = known ? [percentNumber(this.last.hits), "%"] : ["–", ""];
    this.tiles.hits.show(this.last.hits, text, unit, known ? words(ever) : "");
  }

  flow(nbytes, grown, seconds, words) {
    const speed = seconds ? grown(nbytes) / seconds : 0;
    this.tiles.disk.spark.push(speed);
    const [number, unit] = bytesParts(speed);
    this.tiles.disk.show(speed, number, `${unit}/s`, words);
  }

  // ── memory ───────────────────────────────────────────────────────────────────────────────────────────

  memory({ memory, about, resident }) {
    const tiers = Object.entries(TIERS).filter(([name]) => memory[name]);
    const inMemory = tiers.filter(([name]) => !["disk", "gpu", "ram"].includes(name));
    const used = inMemory.reduce((sum, [name]) => sum + memory[name].used, 0);
    const whole = Math.max(used, about.budget ?? inMemory.reduce((sum, [name]) => sum + memory[name].limit, 0));
    const planned = about.budget ? `${bytes(used)} of ${bytes(about.budget)}` : `${bytes(used)}, no budget`;
    byId("memory-summary").textContent = resident === null ? planned : `${planned}, really ${bytes(resident)}`;
    byId("memory-bar").replaceChildren(
      ...inMemory.filter(([name]) => memory[name].used).map(([name]) => {
        const part = element("i", { class: `tier-${name}` });
        part.style.width = `${(100 * memory[name].used) / whole}%`;
        return part;
      }),
    );
    byId("memory").replaceChildren(...tiers.flatMap(([name, label]) => tierRow(name, label, memory[name])));
  }

  // ── requests ─────────────────────────────────────────────────────────────────────────────────────────

  queue({ queue, slots, memory, about, drafts }) {
    const words = [`${queue.active} of ${queue.parallel} active`, `${queue.waiting} waiting`, `${memory.sessions.kept} kept`];
    if (drafts?.drafted) {
      words.push(`drafts ${percent(drafts.accepted / drafts.drafted)} right, ${drafts.gain.toFixed(2)} times as fast`);
    }
    byId("queue-summary").textContent = words.join(", ");
    const rows = slots.map((slot, number) => slotRow(slot, number, about.context));
    if (!rows.length) rows.push(element("li", { class: "nobody" }, "Nobody is asking."));
    byId("slots").replaceChildren(...rows);
  }

  about({ file, layers, experts, experts_used, context, device, mode, policy, version }) {
    const words = [
      file,
      `${layers} layers, ${experts_used} of ${experts} experts`,
      `context ${count(context)}`,
      device,
      mode + (policy ? `, ${policy}` : ""),
      `Penstock ${version}`,
    ];
    byId("about").textContent = words.join(" · ");
  }
}

// How many of a GPU's steps were recorded graphs.
function graphs(gpu) {
  const all = gpu ? gpu.repeated + gpu.launched : 0;
  return all ? `, ${percent(gpu.repeated / all)} graphs` : "";
}

class Tile {
  constructor({ id, label, hint }) {
    this.spark = new Spark();
    this.value = element("b", {}, "–");
    this.unit = element("span", { class: "unit" });
    this.title = element("h2", {}, label);
    this.note = element("span", { class: "note" });
    this.element = element(
      "article",
      { class: `tile tile-${id}`, title: hint, id: `tile-${id}` },
      element("header", {}, this.title, this.note),
      element("p", { class: "reading" }, this.value, this.unit),
      this.spark.element,
    );
  }

  show(value, text, unit, note) {
    this.element.classList.toggle("empty", !Number.isFinite(value));
    this.value.textContent = text;
    this.unit.textContent = unit;
    this.note.textContent = note;
  }
}

function tierRow(name, label, { used, limit, total, kept }) {
  const notes = [];
  if (total > limit) notes.push(`of ${bytes(total)}`);
  if (kept !== undefined) notes.push(`${count(kept)} kept`);
  const level = element("i", { class: `tier-${name}` });
  level.style.width = `${limit ? Math.min(100, (100 * used) / limit) : 0}%`;
  const amount = used === limit ? bytes(used) : `${bytes(used)} of ${bytes(limit)}`;
  return [
    element("dt", {}, element("i", { class: `dot tier-${name}`, "aria-hidden": "true" }), label),
    element("dd", { class: "level", "aria-hidden": "true" }, level),
    element("dd", {}, amount),
    element("dd", { class: "note" }, notes.join(", ")),
  ];
}

function slotRow({ prompt, cached, read, decoded, remaining }, number, context) {
  const reading = read < prompt;
  const words = reading
    ? `reading ${count(read)} of ${count(prompt)}`
    : `${count(decoded)} tokens after ${count(prompt)}`;
  const bar = element("progress", {
    max: reading ? prompt : Math.min(decoded + remaining, context - prompt),
    value: reading ? read : decoded,
    "aria-label": words,
    class: reading ? "reading" : "",
  });
  const note = cached ? element("small", {}, `${count(cached)} cached`) : "";
  return element("li", {}, element("span", { class: "number" }, String(number + 1)), bar, element("span", {}, words, note));
}
