// A decision as a table, a row for each node and a column for each plugin, with a small overview of all rows.

import { address, count, counted, h, nodeLink } from "./dom.js";
import { rejection } from "./evidence.js";
import { Overview } from "./overview.js";
import { Table } from "./table.js";

const STATES = {
  chosen: "chosen",
  fits: "fits",
  rejected: "rejected",
  skipped: "not evaluated",
  apart: "excluded",
};

export function picture(evidence) {
  const { filters, scores } = evidence;
  const detail = h("div", { class: "detail", "aria-live": "polite" });
  const columns = [
    { title: "Node", width: 10, grow: 4, cell: (row) => row.name },
    {
      title: "Outcome",
      width: 7,
      cell: (row) => STATES[row.state],
      paint: (cell, row) => cell.classList.add(row.state),
    },
    {
      title: "Total",
      width: 5,
      number: true,
      cell: (row) => (row.total === null ? "" : String(row.total)),
      sort: order,
    },
    ...filters.map((filter) => ({
      title: filter.plugin,
      width: 2.6,
      grow: 1,
      slim: true,
      rejects: true,
      hint: `Sort by what ${filter.plugin} rejected`,
      cell: (row) => (rejection(row, filter.plugin) ? "✕" : ""),
      sort: (row) => (rejection(row, filter.plugin) ? 1 : 0),
      descending: true,
      paint: (cell, row) => {
        const found = rejection(row, filter.plugin);
        if (found) {
          cell.classList.add("no");
          cell.title = found.reasons.join(", ");
        }
      },
    })),
    ...scores.map((column, place) => ({
      title: `${column.plugin} ×${column.weight}`,
      width: 3.2,
      grow: 1,
      number: true,
      slim: true,
      hint: `Sort by ${column.plugin}, weight ${column.weight}`,
      cell: (row) => (row.points.length ? String(row.points[place]) : ""),
      sort: (row) => row.points[place] ?? -1,
      paint: (cell, row) => {
        if (row.points.length) shade(cell, row.points[place] / (100 * column.weight));
      },
    })),
  ];
  const table = new Table({
    label: "Nodes by plugins",
    columns,
    lines: 18,
    rowHeight: 26,
    rowClass: (row) => row.state,
    onSelect: (row) => detail.replaceChildren(...aboutNode(evidence, row)),
    onOpen: (row) => {
      location.hash = address("node", row.name);
    },
  });
  const map = new Overview(table, evidence);
  const field = h("input", {
    id: "nodes",
    type: "search",
    placeholder: "node, plugin or reason",
    spellcheck: "false",
    oninput: () => seek(),
  });
  const shown = h("span", { class: "quiet" });

  function seek() {
    const text = field.value.toLowerCase();
    table.search(text ? (row) => words(row).includes(text) : null);
    shown.textContent = text ? counted(table.rows.length, "node") : "";
    map.paint();
  }

  table.onSort = () => map.paint();
  table.onDrawn = () => map.frame();
  table.show(evidence.rows);
  table.sortBy(2, true);
  map.paint();
  const quiet = evidence.quietFilters.length
    ? `Filters that rejected no node: ${evidence.quietFilters.join(", ")}.`
    : "";
  return h(
    "section",
    { class: "picture" },
    h("h2", {}, "Nodes by plugins"),
    h("div", { class: "controls" }, h("label", { for: "nodes" }, "Find nodes"), field, shown),
    h("div", { class: "side-by-side" }, map.element, table.element),
    cards(evidence),
    detail,
    h("p", { class: "quiet" }, `Points are scores times weights. ${quiet}`),
  );
}

const CARDS = 20;

/** The same for a narrow screen, where a table of plugins cannot be read: a card for each node. */
function cards(evidence) {
  const rows = evidence.rows.toSorted((a, b) => order(b) - order(a));
  const list = h("ul", { class: "cards", "aria-label": "Nodes" });
  const more = h("button", { type: "button", class: "more", onclick: () => add() });

  function add() {
    const from = list.childNodes.length;
    list.append(...rows.slice(from, from + CARDS).map((row) => card(evidence, row)));
    const left = rows.length - list.childNodes.length;
    more.hidden = left <= 0;
    more.textContent = `Show more (${count(left)} left)`;
  }

  add();
  return h("div", { class: "narrow-only" }, list, more);
}

function card(evidence, row) {
  const points = evidence.scores
    .map((column, place) => [column.plugin, row.points[place]])
    .filter(([, each]) => each)
    .sort(([, a], [, b]) => b - a)
    .map(([plugin, each]) => `${plugin} ${each}`);
  const why = row.rejections.map((each) => `${each.plugin}: ${each.reasons.join(", ")}`);
  const total = row.total === null ? "" : `, ${count(row.total)} points`;
  return h(
    "li",
    { class: row.state },
    h("b", {}, nodeLink(row.name)),
    ` ${STATES[row.state]}${total}`,
    h("div", { class: "quiet" }, (why.length ? why : points).join("; ")),
  );
}

/** The best total first, then nodes that few plugins rejected, then the rest. */
function order(row) {
  if (row.total !== null) return row.total + (row.state === "chosen" ? 0.5 : 0);
  return { chosen: 0, fits: -1, rejected: -10 - row.rejections.length, apart: -1000, skipped: -2000 }[row.state];
}

function words(row) {
  return [row.name, STATES[row.state], ...row.rejections.flatMap((each) => [each.plugin, ...each.reasons])]
    .join(" ")
    .toLowerCase();
}

function shade(cell, part) {
  cell.classList.add("points");
  cell.style.setProperty("--part", `${Math.round(Math.max(0, Math.min(part, 1)) * 100)}%`);
}

function* aboutNode(evidence, row) {
  yield h("h3", {}, nodeLink(row.name), ` ${STATES[row.state]}`);
  if (row.state === "apart")
    yield h("p", {}, `${evidence.decision.narrowedBy.join(" and ")} limited the search to other nodes.`);
  if (row.state === "skipped")
    yield h(
      "p",
      {},
      "The search ended before this node: enough other nodes fit, or the nominated one did.",
    );
  if (row.rejections.length)
    yield h(
      "ul",
      {},
      row.rejections.map((each) =>
        h(
          "li",
          {},
          h("strong", {}, each.plugin),
          `: ${each.reasons.join(", ")}`,
          each.code === "UnschedulableAndUnresolvable" ? " (evicting pods would not help)" : "",
        ),
      ),
    );
  if (row.points.length) {
    const { winner, scores } = evidence;
    yield h(
      "table",
      { class: "points" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Plugin", "Points", winner && winner !== row ? winner.name : null]
            .filter(Boolean)
            .map((each) => h("th", { scope: "col" }, each)),
        ),
      ),
      h(
        "tbody",
        {},
        scores.map((column, place) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, `${column.plugin} × ${column.weight}`),
            h("td", {}, count(row.points[place])),
            winner && winner !== row ? h("td", {}, count(winner.points[place])) : null,
          ),
        ),
      ),
      row.total === null
        ? null
        : h(
            "tfoot",
            {},
            h(
              "tr",
              {},
              h("th", { scope: "row" }, "Total"),
              h("td", {}, count(row.total)),
              winner && winner !== row ? h("td", {}, count(winner.total)) : null,
            ),
          ),
    );
  }
}
