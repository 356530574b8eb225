// Puts the page together, and keeps it informed.

import { call, eventsOf } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { percent } from "./format.js";
import { ExpertMap } from "./map.js";
import { Panel } from "./panel.js";
import { Settings } from "./settings.js";

const AGAIN = [500, 1000, 2000, 5000]; // milliseconds before the server is tried again
const SILENT = 5000; // after which the stream counts as broken

const panel = new Panel();
const map = new ExpertMap();
new Chat(new Settings());

for (const button of document.querySelectorAll("[data-show]")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.show;
    for (const each of document.querySelectorAll("[data-show]")) each.setAttribute("aria-pressed", String(each === button));
  });
}

let complaint = ""; // of the server, shown for a while
const park = (parked) =>
  call("/props", { body: { parked } }).catch((error) => {
    complaint = error.message;
    setTimeout(() => (complaint = ""), 8000);
  });
byId("wake").addEventListener("click", () => park(false));
byId("park").addEventListener("click", () => park(true));
if (matchMedia("(pointer: fine)").matches) byId("input").focus();

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
  byId("model").textContent = picture.about.model;
  panel.show(picture);
  if ("map" in picture) map.show(picture.map, picture.about.mode === "mmap");
  state(picture);
}

function state({ state, progress, queue }) {
  const busy = state === "ready" && queue.active > 0;
  badge(busy ? "working" : state, { ready: "good", failed: "bad" }[state] ?? "wait");
  document.body.classList.toggle("working", busy);
  const words = {
    loading: "Reading the weights",
    waking: "Bringing the weights back",
    parked: "The weights are parked. The next message brings them back.",
    failed: "The model could not be read; the server's log says why.",
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
