// Files that go with a message, as text: dropped on the page, pasted or chosen.

import { button, byId, element } from "./dom.js";
import { bytes } from "./format.js";
import { notify } from "./notices.js";

const LARGEST = 1 << 20; // bytes; more than most contexts hold

// As DeepSeek's models are told of a file.
export const fileBlock = ({ name, text }) => `[file name]: ${name}\n[file content begin]\n${text}\n[file content end]`;

export class Files {
  constructor() {
    this.place = byId("files");
    this.given = [];
    const picker = byId("file-picker");
    byId("attach").addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.add(picker.files);
      picker.value = "";
    });
    this.takeDrops();
    byId("input").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add(event.clipboardData.files);
    });
  }

  takeDrops() {
    const over = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    let depth = 0;
    const mark = () => document.body.classList.toggle("dropping", depth > 0);
    document.addEventListener("dragenter", (event) => {
      depth += over(event);
      mark();
    });
    document.addEventListener("dragleave", (event) => {
      depth = Math.max(0, depth - over(event));
      mark();
    });
    document.addEventListener("dragover", (event) => over(event) && event.preventDefault());
    document.addEventListener("drop", (event) => {
      depth = 0;
      mark();
      if (!over(event)) return;
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
  }

  async add(files) {
    for (const file of [...files]) {
      try {
        this.given.push({ name: file.name, text: await textOf(file) });
      } catch (error) {
        notify(`${file.name}: ${error.message}`);
      }
    }
    this.show();
    byId("input").focus();
  }

  // The files, which are not with the composer any more.
  take() {
    const { given } = this;
    this.set([]);
    return given;
  }

  set(given) {
    this.given = [...given];
    this.show();
  }

  show() {
    this.place.hidden = !this.given.length;
    this.place.replaceChildren(
      ...this.given.map((file) => {
        const remove = button("×", () => this.set(this.given.filter((each) => each !== file)));
        remove.setAttribute("aria-label", `Remove ${file.name}`);
        return element("li", { class: "file" }, file.name, element("small", {}, bytes(new Blob([file.text]).size)), remove);
      }),
    );
  }
}

async function textOf(file) {
  if (/^(image|audio|video)\//.test(file.type)) throw new Error("the model reads text only, no pictures or sound");
  if (file.size > LARGEST) throw new Error(`it has ${bytes(file.size)}, ${bytes(LARGEST)} are possible`);
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error("it is not text in UTF-8");
  }
  if (text.includes("\0")) throw new Error("it is not a text");
  return text;
}
