// Puts the page together, and keeps it informed.

import { call, eventsOf } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { Files } from "./files.js";
import { percent } from "./format.js";
import { List } from "./list.js";
import { ExpertMap } from "./map.js";
import { Panel } from "./panel.js";
import { Panes } from "./panes.js";
import { Settings } from "./settings.js";
import { Shortcuts } from "./shortcuts.js";
import { Store } from "./store.js";

const AGAIN = [500, 1000, 2000, 5000]; // milliseconds before the server is tried again
const SILENT = 5000; // after which the stream counts as broken

const panes = new Panes();
const panel = new Panel();
const map = new ExpertMap();
const settings = new Settings();
const store = await Store.open();
const linked = location.hash.slice(1);
const chat = new Chat(store, settings, new Files());
const list = new List(store, chat);
list.onchosen = () => panes.closeOverlay();
new Shortcuts({ chat, list, settings, panes });
if (linked) await chat.openById(linked);
if (matchMedia("(pointer: fine)").matches) byId("input").focus();
document.body.dataset.ready = "";

let complaint = ""; // of the server, shown for a while
const park = (parked) =>
  call("/props", { body: { parked } }).catch((error) => {
    complaint = error.message;
    setTimeout(() => (complaint = ""), 8000);
  });
byId("wake").addEventListener("click", () => park(false));
byId("park").addEventListener("click", () => park(true));

let latest = null; // picture of the engine
let latestMap = null;
panes.addEventListener("change", () => latest && showEngine(latest, true));

watch();

async function watch() {
  for (let tries = 0; ; tries += 1) {
    const stopping = new AbortController();
    let silence = null;
    try {
      const response = await call("/dashboard/events", { signal: stopping.signal });
      for await (const picture of eventsOf(response)) {
        tries = 0;
        clearTimeout(silence);
        silence = setTimeout(() => stopping.abort(), SILENT);
        show(picture);
      }
    } catch {} // the badge says it
    clearTimeout(silence);
    panel.restart();
    badge("offline", "bad");
    await new Promise((resolve) => setTimeout(resolve, AGAIN[Math.min(tries, AGAIN.length - 1)]));
  }
}

function show(picture) {
  latest = picture;
  byId("model").textContent = picture.about.model;
  panel.take(picture);
  if ("map" in picture) latestMap = [picture.map, picture.about.mode === "mmap"];
  showEngine(picture, "map" in picture);
  state(picture);
}

// What nobody sees is not drawn.
function showEngine(picture, withMap) {
  if (!panes.shown.engine) return;
  panel.show(picture);
  if (withMap && latestMap) map.show(...latestMap);
}

function state({ state, progress, queue }) {
  const busy = state === "ready" && queue.active > 0;
  badge(busy ? "working" : state, { ready: "good", failed: "bad" }[state] ?? "wait");
  document.body.classList.toggle("working", busy);
  const words = {
    loading: "Reading the weights",
    waking: "Bringing the weights back",
    parked: "The weights are parked. The next message brings them back.",
    failed: "The model cannot be run; the server's log says why.",
  };
  notice(complaint || words[state]);
  const reading = state === "loading" || state === "waking";
  byId("notice-progress").hidden = byId("notice-share").hidden = !reading;
  byId("notice-progress").value = progress ?? 0;
  byId("notice-share").textContent = percent(progress ?? 0);
  byId("wake").hidden = state !== "parked";
  byId("park").hidden = state !== "ready" || busy;
}

function badge(words, kind) {
  const place = byId("state");
  if (place.textContent !== words) place.textContent = words; // or it would be read out every second
  place.className = `badge ${kind}`;
}

function notice(words) {
  byId("notice").hidden = !words;
  if (words && byId("notice-text").textContent !== words) byId("notice-text").textContent = words;
}
