// A table of any length: only the rows in sight are in the document. Its headings sort it, keys move in it.

import { ask, collator, count, eachFrame, h, repeated, searchField } from "./dom.js";

export const UPRIGHT = 150; // pixels for titles that stand upright
const SPARE = 6; // rows kept above and below those in sight
let tables = 0;

export class Table {
  /**
   * columns: { title, width, grow?, cell(row), sort(row)?, paint(element, row)?, number?, slim?, rejects?,
   * wide?, hint?, descending? }. Widths are in rem, at least. A cell is text or an element. `slim` ones have
   * their titles upright, `wide` ones are left out on a narrow screen.
   */
  constructor({
    label,
    columns,
    rowHeight = 28,
    lines = 18,
    onOpen,
    onSelect,
    rowClass,
    empty = "Nothing here.",
  }) {
    Object.assign(this, { columns, rowHeight, onOpen, onSelect, rowClass, empty });
    this.id = `table-${++tables}`;
    this.rows = [];
    this.all = [];
    this.selected = -1;
    this.sorting = null;
    this.filter = null;
    this.draw = eachFrame(() => this.#draw());
    this.head = h(
      "div",
      { class: "row head", role: "row" },
      columns.map((column, place) => this.#heading(column, place)),
    );
    this.space = h("div", { class: "space", role: "rowgroup" });
    this.scroller = h(
      "div",
      {
        class: "scroller",
        tabindex: "0",
        role: "grid",
        "aria-label": label,
        onscroll: () => this.draw(),
        onkeydown: (event) => this.#key(event),
      },
      h("div", { role: "rowgroup", class: "headings" }, this.head),
      this.space,
    );
    const headings = columns.some((column) => column.slim) ? UPRIGHT : 34;
    this.height = rowHeight * lines + headings;
    this.scroller.style.maxHeight = `${this.height}px`;
    this.note = h("p", { class: "empty" }, empty);
    this.element = h("div", { class: "table" }, this.scroller, this.note);
    this.#lay();
    this.resizing = new ResizeObserver(() => {
      this.#lay();
      this.draw();
    });
    this.resizing.observe(this.scroller);
  }

  /** Takes other rows; what was selected stays so if `same` finds it again. */
  show(rows, same) {
    const kept = same && this.rows[this.selected];
    this.all = rows;
    this.#arrange();
    this.selected = kept
      ? this.rows.findIndex((row) => same(row, kept))
      : Math.min(this.selected, this.rows.length - 1);
    this.draw();
  }

  search(test) {
    this.filter = test;
    this.#arrange();
    this.selected = -1;
    this.scroller.scrollTop = 0;
    this.draw();
  }

  sortBy(place, descending = false) {
    this.sorting = { place, descending };
    this.head.childNodes.forEach((heading, at) => {
      heading.setAttribute("aria-sort", at !== place ? "none" : descending ? "descending" : "ascending");
    });
    this.#arrange();
    this.draw();
  }

  select(place, reveal = true) {
    if (!this.rows.length) return;
    this.selected = Math.max(0, Math.min(place, this.rows.length - 1));
    if (reveal) {
      const top = this.selected * this.rowHeight;
      const room = this.scroller.clientHeight - this.head.offsetHeight - this.rowHeight;
      if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
      else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    }
    this.draw();
    this.onSelect?.(this.rows[this.selected]);
  }

  /** The part of all rows that is in sight, as [from, to] of 1. */
  get inSight() {
    const total = Math.max(this.rows.length * this.rowHeight, 1);
    const room = this.scroller.clientHeight - this.head.offsetHeight;
    return [this.scroller.scrollTop / total, Math.min((this.scroller.scrollTop + room) / total, 1)];
  }

  #arrange() {
    let rows = this.filter ? this.all.filter(this.filter) : this.all.slice();
    if (this.sorting) {
      const { place, descending } = this.sorting;
      const value = this.columns[place].sort ?? this.columns[place].cell;
      const keyed = rows.map((row) => [value(row), row]);
      const way = descending ? -1 : 1;
      keyed.sort(
        ([a], [b]) => way * (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b)),
      );
      rows = keyed.map(([, row]) => row);
    }
    this.rows = rows;
  }

  #heading(column, place) {
    const press = () => {
      const first = column.descending ?? Boolean(column.number);
      const again = this.sorting?.place === place;
      this.sortBy(place, again ? !this.sorting.descending : first);
      this.onSort?.();
    };
    const words = column.slim
      ? column.title.split(/(?<=[a-z])(?=[A-Z])/).flatMap((word) => [word, h("wbr")])
      : column.title;
    const text = h("span", {}, words);
    return h(
      "div",
      { role: "columnheader", "aria-sort": "none", class: kind(column) },
      h("button", { type: "button", onclick: press, title: column.hint ?? `Sort by ${column.title}` }, text),
    );
  }

  #lay() {
    const narrow = this.scroller.clientWidth && this.scroller.clientWidth < 560;
    this.scroller.classList.toggle("narrow", Boolean(narrow));
    const shown = this.columns.filter((column) => !(narrow && column.wide));
    this.scroller.style.setProperty(
      "--columns",
      shown.map(({ width, grow }) => (grow ? `minmax(${width}rem, ${grow}fr)` : `${width}rem`)).join(" "),
    );
    this.scroller.style.setProperty("--least", `${shown.reduce((sum, { width }) => sum + width, 0)}rem`);
  }

  #draw() {
    const { scroller, rowHeight, rows } = this;
    this.note.hidden = rows.length > 0;
    if (!rows.length) this.note.textContent = this.all.length ? "Nothing matches." : this.empty;
    scroller.setAttribute("aria-rowcount", rows.length + 1);
    this.space.style.height = `${rows.length * rowHeight}px`;
    const first = Math.max(0, Math.floor(scroller.scrollTop / rowHeight) - SPARE);
    const last = Math.min(
      rows.length,
      Math.ceil((scroller.scrollTop + scroller.clientHeight) / rowHeight) + SPARE,
    );
    const lines = [];
    for (let place = first; place < last; place++) lines.push(this.#line(rows[place], place));
    this.space.replaceChildren(...lines);
    const active = this.selected >= first && this.selected < last ? `${this.id}-${this.selected}` : null;
    if (active) scroller.setAttribute("aria-activedescendant", active);
    else scroller.removeAttribute("aria-activedescendant");
    this.onDrawn?.();
  }

  #line(row, place) {
    const isSelected = place === this.selected;
    const line = h(
      "div",
      {
        id: `${this.id}-${place}`,
        role: "row",
        "aria-rowindex": place + 2,
        "aria-selected": String(isSelected),
        class: `row ${isSelected ? "selected" : ""} ${this.rowClass?.(row) ?? ""}`,
        onclick: () => this.select(place, false),
        ondblclick: () => this.onOpen?.(row),
      },
      this.columns.map((column) => cell(column, row)),
    );
    line.style.transform = `translateY(${place * this.rowHeight}px)`;
    line.style.height = `${this.rowHeight}px`;
    return line;
  }

  #key(event) {
    if (event.target !== this.scroller || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.rowHeight) - 2);
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    };
    if (event.key in steps)
      this.select(this.selected < 0 && steps[event.key] === 1 ? 0 : this.selected + steps[event.key]);
    else if (event.key === "Enter" && this.rows[this.selected]) this.onOpen?.(this.rows[this.selected]);
    else return;
    event.preventDefault();
  }
}

function kind(column) {
  return ["cell", ...["number", "wide", "slim", "rejects"].filter((each) => column[each])].join(" ");
}

function cell(column, row) {
  const found = column.cell(row);
  const element = h("div", { role: "gridcell", class: kind(column) }, found ?? "");
  if (typeof found === "string" && found.length > 12) element.title = found;
  for (const each of element.querySelectorAll("a")) each.tabIndex = -1; // Enter opens the row: Tab goes on
  column.paint?.(element, row);
  return element;
}

/**
 * A view of rows that can be searched; asked for again every `refresh` milliseconds. `door` is its address and
 * what is asked. `states` explains the counts above the table, `choices` are drop-down lists by what they choose,
 * and `note` says what to write below.
 */
export function searchableView(options) {
  const { title, heading = title, door, label, table, query, refresh, states = {}, choices = {}, note, show } = options;
  const counts = h("dl", { class: "counts" });
  const field = searchField(query.get("search") ?? "", "part of a name", () => seek());
  const below = h("p", { class: "quiet" });
  let latest = 0;
  for (const choice of Object.values(choices)) choice.onchange = () => seek();

  function filters() {
    const found = Object.entries(choices).map(([name, choice]) => [name, choice.value]);
    found.unshift(["search", field.value.trim()]);
    return Object.fromEntries(found.filter(([, value]) => value));
  }

  async function update() {
    const turn = ++latest;
    try {
      const found = await ask(door, filters());
      if (turn !== latest) return; // a newer question was asked meanwhile
      counts.replaceChildren(
        ...Object.entries(states)
          .filter(([state]) => state in found.counts)
          .map(([state, meaning]) =>
            h(
              "div",
              { title: meaning },
              h("dt", {}, state),
              h("dd", {}, count(found.counts[state]), h("small", {}, meaning)),
            ),
          ),
      );
      const rows = show(found);
      const left = found.leftOut ? `The first ${count(rows)} are listed; search to see others.` : "";
      below.textContent = note?.(found) || left;
    } catch (error) {
      if (turn === latest) below.textContent = error.message;
    }
  }

  function seek() {
    const text = new URLSearchParams(filters()).toString();
    history.replaceState(null, "", `#/${door}${text ? `?${text}` : ""}`);
    repeating.now();
  }

  const repeating = repeated(update, refresh);
  return {
    ...repeating,
    title,
    update: repeating.now,
    element: h(
      "section",
      {},
      h("h1", {}, heading),
      Object.keys(states).length ? counts : null,
      h(
        "div",
        { class: "controls" },
        h("label", { for: "search" }, label),
        field,
        Object.entries(choices).flatMap(([name, choice]) => [
          h("label", { for: name }, name[0].toUpperCase() + name.slice(1)),
          choice,
        ]),
      ),
      table.element,
      below,
    ),
  };
}
