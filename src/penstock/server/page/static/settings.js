// How the model is asked: kept in the browser, and sent with every question.

import { call } from "./api.js";
import { byId, element } from "./dom.js";
import { forBrowser, load, save } from "./stored.js";

const number = (name, label, hint, limits, key) => ({ name, label, hint, kind: "number", default: "", limits, key: key ?? name });
const choice = (name, label, choices, hint) => ({ name, label, hint, kind: "select", default: Object.keys(choices)[0], choices });
const text = (name, label, rows, more) => ({ name, label, kind: "text", default: "", rows, ...more });
const tick = (name, label, value) => ({ name, label, kind: "tick", default: value });

const GROUPS = {
  Answer: [
    text("system", "System prompt", 3, { wide: true }),
    choice("thinking", "Thinking", { none: "off", low: "low", high: "high", max: "max" }),
    number("max", "Most tokens", "no limit", { min: 1, step: 1 }, "max_tokens"),
    text("stop", "Stop at, one per line", 2, { wide: true }),
  ],
  Sampling: [
    number("temperature", "Temperature", "0: always the likeliest token", { min: 0, max: 5, step: "any" }),
    number("top_p", "Top-p", "share of probability to draw from", { min: 0, max: 1, step: "any" }),
    number("top_k", "Top-k", "0: all tokens", { min: 0, step: 1 }),
    number("min_p", "Min-p", "of the likeliest token's probability", { min: 0, max: 1, step: "any" }),
    number("repetition_penalty", "Repetition penalty", "1: none", { min: 0.01, step: "any" }),
    number("presence_penalty", "Presence penalty", "0: none", { min: -2, max: 2, step: "any" }),
    number("frequency_penalty", "Frequency penalty", "0: none", { min: -2, max: 2, step: "any" }),
    number("seed", "Seed", "the same answer again", { step: 1 }),
  ],
  "Form and tools": [
    choice("form", "Form of the answer", { text: "free text", json_object: "any JSON object", json_schema: "JSON of the schema" }),
    choice("tool_choice", "Calls of tools", { auto: "if the model wants", required: "required", none: "none" }),
    text("schema", "JSON schema", 5, { wide: true, json: checkSchema, example: "schema" }),
    text("tools", "Tools, as a JSON list", 5, { wide: true, json: checkTools, example: "tools" }),
  ],
  Page: [
    tick("probabilities", "Keep the probabilities of tokens with answers", false),
    tick("keys", "Shortcuts of a single key", true),
  ],
};
const FIELDS = Object.values(GROUPS).flat();
const EXAMPLES = {
  schema: { type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"] },
  tools: [
    {
      name: "get_weather",
      description: "Weather of a city",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
    },
  ],
};
const ALTERNATIVES = 5; // that are kept of every token

export class Settings {
  constructor() {
    const defaults = Object.fromEntries(FIELDS.map((field) => [field.name, field.default]));
    this.values = { ...defaults, ...load(forBrowser, "settings", {}) };
    this.dialog = byId("settings");
    this.inputs = {};
    byId("settings-groups").append(...Object.entries(GROUPS).map(([title, fields]) => this.group(title, fields)));
    byId("open-settings").addEventListener("click", () => this.open());
    byId("settings-cancel").addEventListener("click", () => this.dialog.close());
    byId("settings-reset").addEventListener("click", () => this.fill(defaults));
    this.dialog.addEventListener("submit", ({ submitter }) => submitter === byId("settings-done") && this.keep());
    this.tell();
  }

  group(title, fields) {
    return element("fieldset", {}, element("legend", {}, title), ...fields.map((field) => this.row(field)));
  }

  row(field) {
    const id = `set-${field.name}`;
    const input = (this.inputs[field.name] = control(field, id));
    if (field.kind === "tick") return element("label", { class: "tick wide" }, input, field.label);
    if (field.json) input.addEventListener("input", () => input.setCustomValidity(problem(field, input.value)));
    const parts = [element("label", { for: id }, field.label), input];
    if (field.example) {
      const fill = () => {
        input.value = JSON.stringify(EXAMPLES[field.example], null, 2);
        input.setCustomValidity("");
      };
      parts.push(element("button", { type: "button", class: "quiet example", id: `example-${field.name}`, onclick: fill }, "Example"));
    }
    return element("div", { class: field.wide ? "field wide" : "field" }, ...parts);
  }

  open() {
    this.fill(this.values);
    this.dialog.showModal();
    this.showDefaults();
  }

  fill(values) {
    for (const [name, input] of Object.entries(this.inputs)) {
      if (input.type === "checkbox") input.checked = values[name];
      else input.value = values[name];
      input.setCustomValidity("");
    }
  }

  // What the server does where nothing is said here.
  async showDefaults() {
    try {
      const { default_generation_settings: given } = await (await call("/props")).json();
      const names = { repeat_penalty: "repetition_penalty" };
      for (const [name, value] of Object.entries(given.params)) {
        const input = this.inputs[names[name] ?? name];
        if (input?.type === "number" && value >= 0) input.placeholder = String(value);
      }
    } catch {} // they are a help, no more
  }

  keep() {
    for (const [name, input] of Object.entries(this.inputs)) {
      this.values[name] = input.type === "checkbox" ? input.checked : input.value.trim();
    }
    save(forBrowser, "settings", this.values);
    this.tell();
  }

  // What is not as usual, beside the buttons.
  tell() {
    const { system, thinking, form, probabilities } = this.values;
    const tools = this.tools.length;
    const words = [
      thinking !== "none" && `thinking ${thinking}`,
      ...FIELDS.filter((field) => field.kind === "number" && this.values[field.name] !== "").map(
        (field) => `${field.label.toLowerCase()} ${this.values[field.name]}`,
      ),
      system && "system prompt",
      this.stops.length && "stops",
      form !== "text" && "JSON",
      tools && `${tools} tool${tools > 1 ? "s" : ""}`,
      probabilities && "probabilities",
    ];
    byId("chosen").textContent = words.filter(Boolean).join(" · ");
  }

  get system() {
    return this.values.system;
  }

  get json() {
    return this.values.form !== "text";
  }

  get tools() {
    return this.values.tools ? JSON.parse(this.values.tools).map((tool) => tool.function ?? tool) : [];
  }

  get stops() {
    return this.values.stop.split("\n").filter(Boolean);
  }

  // The fields of a request besides its messages.
  fields() {
    const { thinking, form, schema, tool_choice, probabilities } = this.values;
    const { tools, stops } = this;
    const found = { reasoning_effort: thinking };
    for (const { name, kind, key } of FIELDS) {
      if (kind === "number" && this.values[name] !== "") found[key] = Number(this.values[name]);
    }
    if (stops.length) found.stop = stops;
    if (form === "json_object") found.response_format = { type: form };
    if (form === "json_schema") found.response_format = { type: form, json_schema: { name: "answer", strict: true, schema: JSON.parse(schema || "{}") } };
    if (tools.length) Object.assign(found, { tools: tools.map((tool) => ({ type: "function", function: tool })), tool_choice });
    if (probabilities) Object.assign(found, { logprobs: true, top_logprobs: ALTERNATIVES });
    return found;
  }
}

function control({ kind, choices, rows, limits, json, hint }, id) {
  switch (kind) {
    case "select":
      return element("select", { id }, ...Object.entries(choices).map(([value, label]) => element("option", { value }, label)));
    case "number": {
      const made = element("input", { id, type: "number", placeholder: hint, title: hint });
      for (const [name, value] of Object.entries(limits)) made.setAttribute(name, value);
      return made;
    }
    case "tick":
      return element("input", { id, type: "checkbox" });
    default:
      return element("textarea", { id, rows: String(rows), ...(json && { class: "code", spellcheck: "false" }) });
  }
}

function problem({ json }, given) {
  if (!given.trim()) return "";
  try {
    return json(JSON.parse(given));
  } catch (error) {
    return error.message;
  }
}

function checkTools(tools) {
  const named = Array.isArray(tools) && tools.every((tool) => typeof (tool?.function ?? tool)?.name === "string");
  return named ? "" : "Expected a list of objects, each with a name";
}

function checkSchema(schema) {
  return schema && typeof schema === "object" && !Array.isArray(schema) ? "" : "Expected an object";
}
