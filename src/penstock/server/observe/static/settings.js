// How the model is asked: kept in the browser.

import { byId } from "./dom.js";
import { forBrowser, load, save } from "./stored.js";

const DEFAULTS = { system: "", temperature: "", max: "", thinking: "none", tools: "" };
const EXAMPLE = [
  {
    name: "get_weather",
    description: "Weather of a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

export class Settings {
  constructor() {
    this.values = { ...DEFAULTS, ...load(forBrowser, "settings", {}) };
    this.dialog = byId("settings");
    this.fields = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, byId(`set-${name}`)]));
    byId("open-settings").addEventListener("click", () => this.open());
    byId("example-tool").addEventListener("click", () => {
      this.fields.tools.value = JSON.stringify(EXAMPLE, null, 2);
    });
    this.dialog.addEventListener("close", () => this.keep());
    byId("settings-done").addEventListener("click", (event) => {
      const wrong = problem(this.fields.tools.value);
      this.complain(wrong);
      if (wrong) event.preventDefault();
    });
    this.tell();
  }

  open() {
    for (const [name, field] of Object.entries(this.fields)) field.value = this.values[name];
    this.complain("");
    this.dialog.showModal();
  }

  complain(words) {
    byId("settings-error").hidden = !words;
    byId("settings-error").textContent = words;
  }

  keep() {
    const given = Object.fromEntries(Object.entries(this.fields).map(([name, field]) => [name, field.value.trim()]));
    if (problem(given.tools)) given.tools = this.values.tools;
    this.values = given;
    save(forBrowser, "settings", given);
    this.tell();
  }

  // What is not as usual, beside the buttons.
  tell() {
    const { system, temperature, max, thinking } = this.values;
    const tools = this.tools.length;
    const words = [
      thinking !== "none" && `thinking ${thinking}`,
      temperature && `temperature ${temperature}`,
      max && `up to ${max} tokens`,
      system && "system prompt",
      tools && `${tools} tool${tools > 1 ? "s" : ""}`,
    ];
    byId("chosen").textContent = words.filter(Boolean).join(" · ");
  }

  get system() {
    return this.values.system;
  }

  get tools() {
    return this.values.tools ? JSON.parse(this.values.tools).map((tool) => tool.function ?? tool) : [];
  }

  // The fields of a request besides its messages.
  fieldsOfRequest() {
    const { temperature, max, thinking } = this.values;
    const { tools } = this;
    return {
      reasoning_effort: thinking,
      ...(temperature && { temperature: Number(temperature) }),
      ...(max && { max_tokens: Number(max) }),
      ...(tools.length && { tools: tools.map((tool) => ({ type: "function", function: tool })) }),
    };
  }
}

function problem(text) {
  if (!text.trim()) return "";
  try {
    const tools = JSON.parse(text);
    const named = Array.isArray(tools) && tools.every((tool) => typeof (tool?.function ?? tool)?.name === "string");
    return named ? "" : "Tools: expected a list of objects, each with a name";
  } catch (error) {
    return `Tools: ${error.message}`;
  }
}
