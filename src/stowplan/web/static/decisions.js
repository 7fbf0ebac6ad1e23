// The stream of decisions, with their rate and duration.

import {
  address,
  colour,
  count,
  counted,
  duration,
  eachFrame,
  h,
  nodeLink,
  podLink,
  searchField,
  sized,
  time,
} from "./dom.js";
import { live } from "./live.js";
import { Table } from "./table.js";

export function decisionsView(query) {
  const table = new Table({
    label: "Decisions, the newest first",
    empty: "No decisions yet.",
    columns: [
      {
        title: "Time",
        width: 6.5,
        wide: true,
        cell: (row) => time(row.time),
        sort: (row) => row.number,
        descending: true,
      },
      { title: "Pod", width: 11, grow: 3, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "Outcome", width: 11, grow: 4, cell: outcome, sort: (row) => row.node || row.message },
      {
        title: "Took",
        width: 5.5,
        number: true,
        cell: (row) => duration(row.seconds),
        sort: (row) => row.seconds,
      },
      {
        title: "Attempt",
        width: 5.5,
        number: true,
        wide: true,
        cell: (row) => count(row.attempt),
        sort: (row) => row.attempt,
      },
    ],
    onOpen: (row) => {
      location.hash = address("pod", row.pod, String(row.number));
    },
    rowClass: (row) => row.outcome,
  });
  const rate = new Chart(
    "decisions per second",
    (sample) => sample.rate,
    (value) => count(Math.round(value)),
  );
  const median = new Chart("median time of an attempt", (sample) => sample.median, duration);
  const slowest = new Chart("99th percentile", (sample) => sample.slowest, duration);
  const field = searchField(query.get("search") ?? "", "pod, node or reason", () => seek());
  const pause = h("button", { type: "button", "aria-pressed": "false", onclick: () => toggle() }, "Pause");
  const note = h("p", { class: "quiet" });
  let isPaused = false;

  const draw = eachFrame(() => {
    for (const chart of [rate, median, slowest]) chart.draw(live.samples);
    if (isPaused) return;
    table.show(live.decisions, (a, b) => a.number === b.number);
    note.textContent = live.now ? summary(live.now) : "";
  });

  function toggle() {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "Resume" : "Pause";
    draw();
  }

  function seek() {
    const text = field.value.toLowerCase();
    table.search(
      text
        ? (row) =>
            [row.pod, row.node ?? "", row.message, row.outcome].some((each) => each.toLowerCase().includes(text))
        : null,
    );
    history.replaceState(
      null,
      "",
      field.value ? `#/decisions?${new URLSearchParams({ search: field.value })}` : "#/decisions",
    );
  }

  return {
    title: "Decisions",
    element: h(
      "section",
      {},
      h("h1", {}, "Decisions"),
      h("div", { class: "charts" }, rate.element, median.element, slowest.element),
      h("div", { class: "controls" }, h("label", { for: "search" }, "Find"), field, pause),
      table.element,
      note,
    ),
    opened() {
      live.addEventListener("news", draw);
      if (field.value) seek();
      draw();
    },
    closed() {
      live.removeEventListener("news", draw);
    },
  };
}

function summary(now) {
  if (!now.isKeeping)
    return "This scheduler does not record decisions (--decisions-memory=0), so none can be shown.";
  const missed = live.missed ? `; ${counted(live.missed, "decision")} were too many to list` : "";
  const made = `${counted(now.number, "decision")} since the scheduler started`;
  return `${made}, of which ${count(now.kept)} are in memory${missed}.`;
}

function outcome(row) {
  if (row.node) return h("span", {}, "→ ", nodeLink(row.node));
  return row.nominated ? `nominated to ${row.nominated}: ${row.message}` : `${row.outcome}: ${row.message}`;
}

class Chart {
  constructor(title, value, text) {
    Object.assign(this, { value, text });
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.plot = h("div", { class: "plot" }, this.canvas);
    this.number = h("strong", {}, "–");
    this.element = h("figure", {}, h("figcaption", {}, this.number, " ", h("span", {}, title)), this.plot);
  }

  draw(samples) {
    const width = this.plot.clientWidth || 200,
      height = 44;
    const context = sized(this.canvas, width, height);
    const values = samples.map(this.value);
    const known = values.filter((value) => value !== null && value !== undefined);
    const top = Math.max(...known, 1e-9);
    this.number.textContent = known.length ? this.text(known.at(-1)) : "–";
    context.fillStyle = colour("fill");
    const step = width / 120;
    values.slice(-120).forEach((value, place) => {
      const bar = value ? Math.max(1, (value / top) * (height - 2)) : 0;
      context.fillRect(place * step, height - bar, Math.max(step - 1, 1), bar);
    });
  }
}
