// The shadow: how the decisions of the live scheduler compare with this configuration.

import { address, ask, count, counted, h, nodeLink, podLink, repeated, searchField, time } from "./dom.js";
import { Table } from "./table.js";

const CLASSES = {
  same: "the same node, or none for both",
  tie: "a node with the same score",
  timing: "the cluster changed meanwhile",
  sample: "other nodes were looked at",
  policy: "the configurations differ",
  error: "a plugin failed here",
};
const REFRESH = 1000;

export function shadowView(query) {
  const table = new Table({
    label: "Disagreements, the newest first",
    empty: "No disagreements yet.",
    columns: [
      { title: "Time", width: 6.5, wide: true, cell: (row) => time(row.time), sort: (row) => -row.time },
      { title: "Class", width: 5.5, cell: (row) => row.result, sort: (row) => row.result },
      { title: "Pod", width: 11, grow: 2, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "Live", width: 8, grow: 1, cell: (row) => node(row.live), sort: (row) => row.live },
      { title: "Here", width: 8, grow: 1, cell: (row) => node(row.chosen), sort: (row) => row.chosen },
      { title: "Why", width: 12, grow: 5, cell: (row) => h("span", { title: row.reason }, row.reason) },
    ],
    onOpen: (row) => {
      location.hash = address("pod", row.pod);
    },
  });
  const counts = h("dl", { class: "counts" });
  const lead = h("p", { id: "agreement" });
  const note = h("p", { class: "quiet" });
  const field = searchField(query.get("search") ?? "", "class, pod, node or reason", () => seek());

  async function refresh() {
    try {
      const { summary, disagreements } = await ask("shadow");
      lead.textContent = agreement(summary);
      counts.replaceChildren(
        ...Object.entries(summary.results).map(([name, number]) =>
          h(
            "div",
            { title: CLASSES[name] },
            h("dt", {}, name),
            h("dd", {}, count(number), h("small", {}, CLASSES[name] ?? "")),
          ),
        ),
      );
      table.show(disagreements, (a, b) => a.pod === b.pod && a.time === b.time);
      note.textContent = remarks(summary).join(" ");
    } catch (error) {
      note.textContent = error.message;
    }
  }

  function seek() {
    const text = field.value.toLowerCase();
    table.search(
      text
        ? (row) =>
            [row.result, row.pod, row.live, row.chosen, row.reason].some((each) =>
              each.toLowerCase().includes(text),
            )
        : null,
    );
    history.replaceState(
      null,
      "",
      field.value ? `#/shadow?${new URLSearchParams({ search: field.value })}` : "#/shadow",
    );
  }

  const repeating = repeated(refresh, REFRESH);
  return {
    title: "Shadow",
    element: h(
      "section",
      {},
      h("h1", {}, "Shadow"),
      lead,
      counts,
      h("div", { class: "controls" }, h("label", { for: "search" }, "Find"), field),
      table.element,
      note,
    ),
    opened() {
      if (field.value) seek();
      repeating.opened();
    },
    closed: repeating.closed,
  };
}

function node(name) {
  return name ? nodeLink(name) : "none";
}

function agreement(summary) {
  if (!summary.judged) return "The live scheduler has not placed a pod yet since this started.";
  const share = (part) => `${(100 * part).toFixed(1)}%`;
  return `${counted(summary.judged, "decision")} of the live scheduler compared: ${share(summary.sameNode)} the same node, ${share(summary.agreement)} the same node or the same score.`;
}

function remarks(summary) {
  const found = [];
  const causes = Object.entries(summary.causes).map(([name, number]) => `${name || "several"} ${count(number)}`);
  if (causes.length) found.push(`Policy differs by ${causes.join(", ")}.`);
  if (summary.open) found.push(`${counted(summary.open, "disagreement")} not classified yet.`);
  if (summary.pending) found.push(`${counted(summary.pending, "pod")} not bound yet.`);
  if (summary.gone) found.push(`${counted(summary.gone, "pod")} deleted before being bound.`);
  if (summary.unseen) found.push(`${counted(summary.unseen, "pod")} first seen with a node.`);
  for (const [name, number] of Object.entries(summary.unmatched))
    found.push(`${counted(number, "pod")} not compared: no profile has the schedulerName ${name}.`);
  return found;
}
