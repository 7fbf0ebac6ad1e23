// A small overview of all rows of a decision's table.

import { colour, h, sized } from "./dom.js";
import { rejection } from "./evidence.js";
import { UPRIGHT } from "./table.js";

const COLUMN = 9; // pixels

/** All nodes in the order of the table: a line of the canvas stands for one or more of them. */
export class Overview {
  constructor(table, evidence) {
    Object.assign(this, { table, evidence });
    this.canvas = h("canvas", {
      "aria-hidden": "true",
      title: "All nodes in the order of the table",
      onclick: (event) => this.#jump(event),
    });
    this.window = h("i", { class: "window" });
    this.element = h("div", { class: "map" }, this.canvas, this.window);
  }

  paint() {
    const { filters, scores } = this.evidence;
    const { rows } = this.table;
    const columns = filters.length + scores.length + 1;
    this.height = Math.max(60, Math.min(26 * rows.length + UPRIGHT, this.table.height));
    const context = sized(this.canvas, columns * COLUMN, this.height);
    const no = colour("no"),
      yes = colour("fill"),
      chosen = colour("chosen"),
      room = colour("room");
    const lines = Math.min(rows.length, this.height);
    const tall = lines ? this.height / lines : 0;
    for (let line = 0; line < lines; line++) {
      const row = rows[Math.floor((line / lines) * rows.length)];
      const y = line * tall,
        high = Math.max(tall, 1);
      context.fillStyle = { chosen, fits: yes, rejected: no }[row.state] ?? room;
      context.fillRect(0, y, COLUMN - 2, high);
      filters.forEach((filter, at) => {
        if (rejection(row, filter.plugin)) {
          context.fillStyle = no;
          context.fillRect((at + 1) * COLUMN, y, COLUMN - 1, high);
        }
      });
      context.fillStyle = yes;
      row.points.forEach((points, at) => {
        context.globalAlpha = Math.max(0.06, Math.min(points / (100 * scores[at].weight), 1));
        context.fillRect((filters.length + at + 1) * COLUMN, y, COLUMN - 1, high);
        context.globalAlpha = 1;
      });
    }
    this.frame();
  }

  frame() {
    const [from, to] = this.table.inSight;
    this.window.style.top = `${from * this.height}px`;
    this.window.style.height = `${Math.max((to - from) * this.height, 4)}px`;
    this.window.hidden = to - from >= 1;
  }

  #jump(event) {
    const place = Math.floor((event.offsetY / this.height) * this.table.rows.length);
    this.table.select(place);
  }
}
