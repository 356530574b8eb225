// The map of experts: a row for each layer, a cell for each expert; hue says where it is, brightness how much it is used.

import { byId } from "./dom.js";
import { percent, short } from "./format.js";

const PRESENT = 0x80;
const HEAT = 0x7f;
const GUTTER = 30; // for the names of layers
const SMALLEST = 2.2; // pixels of a cell, below which a layer takes several lines
const DEVICE = 2; // of a cell's tier
const RAMPS = { device: ["--map-device", "--map-busy"], present: ["--map-cold", "--map-cool", "--map-warm", "--map-hot"], absent: ["--map-gone", "--map-missed"] };

const layerName = (block) => block.replace("blk.", "").replace(/^mtp\.0$/, "mtp");

export class ExpertMap {
  constructor() {
    this.canvas = byId("map");
    this.map = null;
    this.mapped = false;
    this.chosen = null; // [row, expert]
    this.colours = this.deviceColours = [];
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    document.addEventListener("theme", () => this.repaint());
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("blur", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.move(event));
    this.repaint();
  }

  // map: as the server sends it, or null when no weights are in memory
  show(map, mapped) {
    this.mapped = mapped;
    if (map) {
      const cells = Uint8Array.from(atob(map.cells), (letter) => letter.charCodeAt(0));
      const tiers = map.tiers ? Uint8Array.from(atob(map.tiers), (letter) => letter.charCodeAt(0)) : null;
      this.map = { ...map, cells, tiers };
      byId("legend-device").hidden = !tiers;
    } else if (this.map) {
      this.map.cells.fill(0);
      this.map.tiers?.fill(0);
    } else return;
    this.draw();
    this.describe();
  }

  describe() {
    const { cells, blocks, experts } = this.map;
    const present = cells.reduce((sum, cell) => sum + (cell >> 7), 0);
    const device = this.map.tiers?.reduce((sum, tier) => sum + (tier === DEVICE), 0);
    const where = this.mapped ? "mapped" : `${percent(present / cells.length)} in memory`;
    const text = `${blocks.length} × ${experts}, ${device === undefined ? "" : `${percent(device / cells.length)} on the GPU, `}${where}`;
    byId("map-summary").textContent = text;
    this.canvas.setAttribute("aria-label", `Map of experts, layers by experts: ${text}`);
    this.canvas.dataset.warm = cells.reduce((sum, cell) => sum + ((cell & HEAT) > 0), 0);
    this.canvas.dataset.present = present;
    this.tell();
  }

  // ── colours ──────────────────────────────────────────────────────────────────────────────────────────

  repaint() {
    const stops = (names) => names.map((name) => this.colour(name));
    const present = stops(RAMPS.present);
    const absent = stops(RAMPS.absent);
    const device = stops(RAMPS.device);
    this.colours = Array.from({ length: 256 }, (_, cell) => mix(cell & PRESENT ? present : absent, (cell & HEAT) / HEAT));
    this.deviceColours = Array.from({ length: 256 }, (_, cell) => mix(device, (cell & HEAT) / HEAT));
    this.ink = `rgb(${this.colour("--muted").join()})`;
    this.mark = `rgb(${this.colour("--ink").join()})`;
    this.draw();
  }

  colour(name) {
    this.canvas.style.color = `var(${name})`;
    return getComputedStyle(this.canvas).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  }

  // ── drawing ──────────────────────────────────────────────────────────────────────────────────────────

  // Where everything lies, in device pixels.
  layout() {
    const ratio = devicePixelRatio || 1;
    const { blocks, experts } = this.map;
    const width = Math.floor(this.canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(this.canvas.parentElement).paddingLeft));
    const room = (width - GUTTER) * ratio;
    let lines = 1;
    while (room / Math.ceil(experts / lines) < SMALLEST * ratio && lines < 8) lines *= 2;
    const columns = Math.ceil(experts / lines);
    const cell = room / columns;
    const tall = Math.max(4 * ratio, Math.min(cell, (blocks.length > 20 ? 6 : 18) * ratio));
    const between = Math.max(1, Math.round(tall * (lines > 1 ? 0.6 : 0.12)));
    const row = Math.round(lines * tall) + between;
    return { ratio, width, lines, columns, cell, tall, row, left: GUTTER * ratio, height: row * blocks.length };
  }

  draw() {
    if (!this.map || !this.canvas.parentElement.clientWidth) return;
    const place = (this.place = this.layout());
    const { blocks, experts, cells, tiers } = this.map;
    this.canvas.width = Math.round(place.width * place.ratio);
    this.canvas.height = place.height;
    this.canvas.style.width = `${place.width}px`;
    this.canvas.style.height = `${place.height / place.ratio}px`;
    const pen = this.canvas.getContext("2d");
    const gap = place.cell >= 6 * place.ratio ? Math.round(place.ratio) : place.cell >= 3 * place.ratio ? 1 : 0;
    for (let row = 0; row < blocks.length; row += 1) {
      for (let expert = 0; expert < experts; expert += 1) {
        const [x, y, width, height] = this.cellAt(row, expert);
        const at = row * experts + expert;
        pen.fillStyle = (tiers?.[at] === DEVICE ? this.deviceColours : this.colours)[cells[at]];
        pen.fillRect(x, y, width - gap, height - gap);
      }
    }
    pen.fillStyle = this.ink;
    pen.font = `${10 * place.ratio}px system-ui, sans-serif`;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil((12 * place.ratio) / place.row);
    for (let row = 0; row < blocks.length; row += every) {
      const middle = row * place.row + (place.lines * place.tall) / 2;
      pen.fillText(layerName(blocks[row]), place.left - 6 * place.ratio, Math.max(5 * place.ratio, middle));
    }
    if (this.chosen) {
      const [x, y, width, height] = this.cellAt(...this.chosen);
      pen.strokeStyle = this.mark;
      pen.lineWidth = 1.5 * place.ratio;
      pen.strokeRect(x, y, width - gap, height - gap);
    }
  }

  cellAt(row, expert) {
    const { columns, cell, tall, left } = this.place;
    const column = expert % columns;
    const line = Math.floor(expert / columns);
    const x = Math.round(left + column * cell);
    const y = Math.round(row * this.place.row + line * tall);
    return [x, y, Math.round(left + (column + 1) * cell) - x, Math.round(row * this.place.row + (line + 1) * tall) - y];
  }

  // ── one cell ─────────────────────────────────────────────────────────────────────────────────────────

  at(event) {
    if (!this.place) return null;
    const { ratio, left, cell, row, tall, columns, lines } = this.place;
    const block = Math.floor((event.offsetY * ratio) / row);
    const line = Math.floor((event.offsetY * ratio - block * row) / tall);
    const column = Math.floor((event.offsetX * ratio - left) / cell);
    const expert = line * columns + column;
    const inside = column >= 0 && column < columns && line < lines && block < this.map.blocks.length;
    return inside && expert < this.map.experts ? [block, expert] : null;
  }

  move(event) {
    const [down, right] = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!this.map || !(down || right)) return;
    event.preventDefault();
    const [row, expert] = this.chosen ?? [0, 0];
    const within = (value, length) => (value + length) % length;
    this.choose([within(row + down, this.map.blocks.length), within(expert + right, this.map.experts)]);
  }

  choose(cell) {
    if (String(cell) === String(this.chosen)) return;
    this.chosen = cell;
    this.draw();
    this.tell();
  }

  tell() {
    const { blocks, experts, cells, tiers, hottest } = this.map ?? {};
    byId("map-summary").hidden = Boolean(this.chosen);
    byId("map-cell").hidden = !this.chosen;
    if (!this.chosen || !cells) return (byId("map-cell").textContent = "");
    const [row, expert] = this.chosen;
    const cell = cells[row * experts + expert];
    const heat = Math.expm1(((cell & HEAT) / HEAT) * Math.log1p(hottest));
    const onDevice = tiers?.[row * experts + expert] === DEVICE;
    const where = onDevice ? "on the GPU" : this.mapped ? "mapped" : cell & PRESENT ? "in memory" : "on disk";
    const words = `layer ${layerName(blocks[row])}, expert ${expert}: ${where}, heat ${short(heat)}`;
    return (byId("map-cell").textContent = words);
  }
}

// A colour on a scale of several, share from 0 to 1.
function mix(stops, share) {
  const at = Math.min(share * (stops.length - 1), stops.length - 1 - 1e-9);
  const low = Math.floor(at);
  const part = at - low;
  return `rgb(${stops[low].map((value, channel) => Math.round(value + part * (stops[low + 1][channel] - value))).join()})`;
}
