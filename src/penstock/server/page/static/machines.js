// The machines of a cluster: what each has, how busy it is, and the link to it.

import { byId, element } from "./dom.js";
import { bytes, percent, short } from "./format.js";

// now, before: pictures of the engine some seconds apart.
export function showMachines(now, before) {
  byId("machines-card").hidden = !now.cluster;
  if (!now.cluster) return;
  const { members, stages, up } = now.cluster;
  const here = members.filter((each) => each.stage !== undefined).length;
  const helpers = members.length - here;
  const words = [`${here} of ${stages} ${stages === 1 ? "stage" : "stages"}`];
  if (helpers) words.push(`${helpers} for experts`);
  if (!up) words.push("waiting");
  byId("machines-summary").textContent = words.join(", ");
  const seconds = now.time - before.time;
  const earlier = before.cluster ? before.cluster.members : [];
  byId("machines").replaceChildren(...members.map((each, number) => machineRow(each, earlier[number], seconds)));
}

function machineRow(now, before, seconds) {
  const grown = (name) => (before && now[name] >= before[name] ? now[name] - before[name] : 0);
  const busy = seconds ? Math.min(1, grown("busy_seconds") / seconds) : 0;
  const has = now.experts
    ? `experts ${now.experts.join(":")}, ${now.experts_taken.decode} taken`
    : now.layers
      ? `layers ${now.layers}`
      : "all layers";
  const notes = [];
  if (now.device && now.device !== "cpu") notes.push(`on ${now.device}`);
  if (now.busy_seconds !== undefined) notes.push(`${percent(busy)} busy`);
  if (now.round_trip_seconds !== undefined) notes.push(`${short(1000 * now.round_trip_seconds)} ms away`);
  if (seconds && now.sent_bytes !== undefined) notes.push(`sends ${bytes(grown("sent_bytes") / seconds)}/s`);
  if (now.seen_seconds_ago > 5) notes.push(`silent for ${short(now.seen_seconds_ago)} s`);
  const bar = element("progress", { max: 1, value: busy, "aria-label": `${now.name}: ${percent(busy)} busy` });
  return element("li", {}, element("span", {}, now.name), bar, element("span", {}, `${has} `, element("small", {}, notes.join(", "))));
}
