// The nodes of a zone on a canvas, for mouse and keyboard.

import { address, counted, h, percent, sized } from "./dom.js";
import { live } from "./live.js";

export const FULL = 250;
export const NONE = 255; // how full a node is, as the server says it in a byte
export const GAP = 2;
export const TILE = { wide: 150, high: 46 }; // has room for a name

export class Zone {
  constructor(view, name, rows) {
    Object.assign(this, { view, rows, at: -1 });
    this.context = null;
    this.summary = h("span", { class: "quiet" });
    this.canvas = h("canvas", {
      tabindex: "0",
      role: "application",
      "aria-roledescription": "map of nodes",
      "aria-label": `${name}: ${counted(rows.length, "node")}. Arrow keys move, Enter opens a node.`,
      onmousemove: (event) => this.#point(event),
      onmouseleave: () => this.#leave(),
      onclick: (event) => {
        this.#point(event);
        this.#open();
      },
      onkeydown: (event) => this.#key(event),
      onfocus: () => this.#move(Math.max(this.at, 0)),
      onblur: () => this.#leave(),
    });
    this.element = h("section", { class: "zone" }, h("h2", {}, name, " ", this.summary), this.canvas);
  }

  size(wide, high, width) {
    Object.assign(this, { wide, high, right: wide + GAP, down: high + GAP });
    this.columns = Math.max(1, Math.floor(width / this.right));
    this.lines = Math.max(1, Math.ceil(this.rows.length / this.columns));
    this.context = sized(this.canvas, this.columns * this.right, this.lines * this.down);
  }

  /** Where a node is drawn. */
  #corner(place) {
    return [(place % this.columns) * this.right, Math.floor(place / this.columns) * this.down];
  }

  draw(paint) {
    const { context, wide, high, view } = this;
    if (!context) return;
    const { fill } = live;
    const names = view.search ? view.lower : null;
    let sum = 0,
      having = 0;
    context.clearRect(0, 0, this.columns * this.right, this.lines * this.down);
    const mark = Math.ceil(Math.min(wide, high) / 3);
    context.font = "12px system-ui, sans-serif";
    this.rows.forEach((row, place) => {
      const [x, y] = this.#corner(place);
      const filled = fill[row];
      const alpha = (context.globalAlpha = names && !names[row].includes(view.search) ? 0.18 : 1);
      if (filled === NONE) {
        context.strokeStyle = paint.room;
        context.strokeRect(x + 0.5, y + 0.5, wide - 1, high - 1);
      } else {
        const part = filled / FULL,
          height = part > 0 ? Math.max(1, Math.round(part * high)) : 0;
        sum += part;
        having++;
        context.fillStyle = paint.room;
        context.fillRect(x, y, wide, high);
        context.fillStyle = part >= 0.9 ? paint["fill-high"] : paint.fill;
        if (wide === TILE.wide) context.globalAlpha *= 0.55; // the name stands on it
        context.fillRect(x, y + high - height, wide, height);
        context.globalAlpha = alpha;
      }
      if (view.tainted.has(row)) {
        context.fillStyle = paint.tainted;
        context.beginPath();
        context.moveTo(x + wide, y);
        context.lineTo(x + wide, y + mark);
        context.lineTo(x + wide - mark, y);
        context.fill();
      }
      if (view.cordoned.has(row)) {
        context.strokeStyle = paint.cordoned;
        context.lineWidth = 2;
        context.strokeRect(x + 1, y + 1, wide - 2, high - 2);
        context.lineWidth = 1;
      }
      if (wide === TILE.wide) {
        context.fillStyle = paint.ink;
        context.fillText(live.cluster.nodes[row], x + 6, y + 16, wide - 12);
        if (filled !== NONE) context.fillText(percent(filled / FULL), x + 6, y + 34);
      }
    });
    context.globalAlpha = 1;
    if (this.at >= 0) {
      context.strokeStyle = paint.chosen;
      context.lineWidth = 2;
      const [x, y] = this.#corner(this.at);
      context.strokeRect(x, y, wide, high);
      context.lineWidth = 1;
    }
    const resource = live.resource === "fullest" ? "" : ` of ${live.resource}`;
    const part = having ? `${percent(sum / having)}${resource} requested` : `none has ${live.resource}`;
    this.summary.textContent = `${counted(this.rows.length, "node")}, ${part}`;
  }

  #point(event) {
    const place =
      Math.floor(event.offsetY / this.down) * this.columns + Math.floor(event.offsetX / this.right);
    if (place >= 0 && place < this.rows.length) this.#move(place, false);
    else this.#leave();
  }

  #move(place, say = true) {
    this.at = Math.max(0, Math.min(place, this.rows.length - 1));
    const words = this.view.words(this.rows[this.at]);
    const { tip } = this.view;
    tip.textContent = words;
    tip.hidden = false;
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = this.#corner(this.at);
    const rightmost = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(4, Math.min(box.left + x, rightmost))}px`;
    tip.style.top = `${box.top + y + this.down + 4}px`;
    if (say) this.view.said.textContent = words;
    this.view.draw();
  }

  #leave() {
    this.at = document.activeElement === this.canvas ? this.at : -1;
    this.view.tip.hidden = true;
    this.view.draw();
  }

  #open() {
    if (this.at >= 0) location.hash = address("node", live.cluster.nodes[this.rows[this.at]]);
  }

  #key(event) {
    const steps = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: this.columns,
      ArrowUp: -this.columns,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key === "Enter") this.#open();
    else if (event.key in steps) {
      const next = this.at + steps[event.key];
      if (Number.isFinite(next) && (next < 0 || next >= this.rows.length)) return;
      this.#move(next);
      const y = this.canvas.getBoundingClientRect().top + this.#corner(this.at)[1];
      if (y < 60) scrollBy(0, y - 120);
      else if (y > innerHeight - 80) scrollBy(0, y - innerHeight + 120);
    } else return;
    event.preventDefault();
  }
}
