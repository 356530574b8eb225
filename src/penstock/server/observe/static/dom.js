// Making elements.  Text is always text: nothing here reads HTML.

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
  const button = element("button", { class: "quiet", type: "button" }, label);
  button.addEventListener("click", async () => {
    await copyText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1200);
  });
  return button;
}
