// Making elements.  Text is always text: nothing here reads HTML.

import { icon } from "./icons.js";

export const byId = (id) => document.getElementById(id);

// element("p", { class: "note", onclick }, "text", other)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") made.toggleAttribute(key, value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

export const button = (label, onclick, kind = "quiet") => element("button", { type: "button", class: kind, onclick }, label);

export const iconButton = (name, label, onclick, kind = "") =>
  element("button", { type: "button", class: `quiet icon ${kind}`, "aria-label": label, title: label, onclick }, icon(name));

export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const helper = element("textarea", { class: "hidden" }); // pages that came over plain HTTP have no clipboard
  helper.value = text;
  document.body.append(helper);
  helper.select();
  document.execCommand("copy");
  helper.remove();
}

export function copyButton(text, label = "Copy") {
  const made = button(label, async () => {
    await copyText(text());
    made.textContent = "Copied";
    setTimeout(() => (made.textContent = label), 1200);
  });
  return made;
}

// Has the browser save a text as a file.
export function download(name, text, kind = "application/json") {
  const address = URL.createObjectURL(new Blob([text], { type: kind }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
