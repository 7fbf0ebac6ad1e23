// The queue: pods without a node, where they wait and for what.

import { address, ago, ask, count, duration, h, podLink } from "./dom.js";
import { live } from "./live.js";
import { Table } from "./table.js";

const PLACES = {
  active: "next to be attempted",
  backoff: "attempted again after a backoff",
  unschedulable: "waiting for a change in the cluster",
  gated: "gated before the first attempt",
  permit: "node chosen, waiting for a permit",
};
const REFRESH = 1000;

export function queueView(query) {
  const table = new Table({
    label: "Waiting pods",
    empty: "No pods are waiting.",
    columns: [
      { title: "Pod", width: 11, grow: 2, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "Where", width: 8.5, cell: (row) => row.place },
      { title: "Waits for", width: 12, grow: 4, cell: waitsFor },
      {
        title: "Tries",
        width: 4.5,
        number: true,
        cell: (row) => count(row.attempts),
        sort: (row) => row.attempts,
      },
      {
        title: "Since",
        width: 7,
        number: true,
        wide: true,
        cell: (row) => ago(row.since),
        sort: (row) => -row.since,
      },
      {
        title: "Priority",
        width: 7,
        number: true,
        wide: true,
        cell: (row) => count(row.priority),
        sort: (row) => row.priority,
      },
    ],
    onOpen: (row) => {
      location.hash = address("pod", row.pod);
    },
  });
  const counts = h("dl", { class: "counts" });
  const field = h("input", {
    id: "search",
    type: "search",
    value: query.get("search") ?? "",
    placeholder: "part of a name",
    spellcheck: "false",
    oninput: () => seek(),
  });
  const note = h("p", { class: "quiet" });
  let timer = 0,
    isOpen = false,
    asking = false;

  async function refresh() {
    clearTimeout(timer);
    if (!isOpen || asking) return;
    asking = true;
    try {
      const found = await ask("queue", { search: field.value });
      counts.replaceChildren(
        ...Object.entries(found.counts).map(([place, number]) =>
          h(
            "div",
            { title: PLACES[place] },
            h("dt", {}, place),
            h("dd", {}, count(number)),
            h("small", {}, PLACES[place] ?? ""),
          ),
        ),
      );
      table.show(found.pods, (a, b) => a.pod === b.pod);
      note.textContent = found.leftOut
        ? `The first ${count(found.pods.length)} are listed; search to see others.`
        : "";
    } catch (error) {
      note.textContent = error.message;
    }
    asking = false;
    if (isOpen) timer = setTimeout(refresh, document.hidden ? 10 * REFRESH : REFRESH);
  }

  function seek() {
    history.replaceState(
      null,
      "",
      field.value ? `#/queue?${new URLSearchParams({ search: field.value })}` : "#/queue",
    );
    refresh();
  }

  return {
    title: "Queue",
    element: h(
      "section",
      {},
      h("h1", {}, "Queue"),
      counts,
      h("div", { class: "controls" }, h("label", { for: "search" }, "Find pods"), field),
      table.element,
      note,
    ),
    opened() {
      isOpen = true;
      refresh();
      live.addEventListener("layout", refresh);
    },
    closed() {
      isOpen = false;
      clearTimeout(timer);
      live.removeEventListener("layout", refresh);
    },
  };
}

function waitsFor(row) {
  if (row.place === "active") return "the pods before it";
  if (row.place === "backoff" && row.until)
    return `its backoff to end in ${duration(Math.max(0, row.until - Date.now() / 1000))}; ${row.message}`;
  return row.message && row.place !== "gated" ? row.message : row.plugins.join(", ");
}
