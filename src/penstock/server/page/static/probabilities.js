// The tokens of an answer, each in the shade of its probability; what else could have stood there is shown for the one
// that is pointed at or, with the arrow keys, walked to.

import { element } from "./dom.js";
import { percent } from "./format.js";

const SHADES = [0.9, 0.6, 0.3, 0.1]; // probabilities between which they change

export function tokensView(tokens) {
  const detail = element("div", { class: "alternatives", role: "status", "aria-live": "polite" });
  const row = element("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens; arrow keys walk through them" });
  let chosen = -1;
  const choose = (number) => {
    if (number === chosen || !tokens[number]) return;
    row.children[chosen]?.classList.remove("pointed");
    chosen = number;
    row.children[chosen].classList.add("pointed");
    detail.replaceChildren(...alternatives(tokens[number]));
  };
  row.append(...tokens.map((token, number) => tokenSpan(token, number)));
  row.addEventListener("pointerover", ({ target }) => target.dataset.number && choose(Number(target.dataset.number)));
  row.addEventListener("click", ({ target }) => target.dataset.number && choose(Number(target.dataset.number)));
  row.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.min(Math.max(chosen + step, 0), tokens.length - 1));
    row.children[chosen].scrollIntoView({ block: "nearest" });
  });
  const mean = Math.exp(tokens.reduce((sum, [, logprob]) => sum + logprob, 0) / tokens.length);
  detail.append(element("span", { class: "note" }, `${tokens.length} tokens, ${percent(mean)} likely each on average. Point at one.`));
  return element("div", { class: "probabilities" }, row, detail);
}

function tokenSpan([text, logprob, , spoken], number) {
  const probability = Math.exp(logprob);
  const shade = SHADES.filter((limit) => probability < limit).length;
  return element("span", { class: `token shade-${shade}${spoken ? "" : " thought"}`, "data-number": String(number) }, text);
}

function alternatives([text, logprob, others]) {
  const rows = others.some(([other]) => other === text) ? others : [[text, logprob], ...others];
  return rows.map(([other, theirs]) => {
    const share = Math.exp(theirs);
    const bar = element("i", { "aria-hidden": "true" });
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    const name = element("code", {}, visible(other));
    return element("div", { class: other === text ? "alternative drawn" : "alternative" }, name, element("span", { class: "level" }, bar), element("span", {}, share < 0.0005 ? "< 0.1 %" : percent(share)));
  });
}

// Blanks and ends of lines can be seen.
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";
