// The queue: pods without a node, where they wait and for what.

import { address, ago, count, duration, podLink } from "./dom.js";
import { live } from "./live.js";
import { Table, searchableView } from "./table.js";

/** What the places of a waiting pod mean. */
export const PLACES = {
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
        title: "Attempts",
        width: 6,
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
  const view = searchableView({
    title: "Queue",
    door: "queue",
    label: "Find pods",
    table,
    query,
    refresh: REFRESH,
    states: PLACES,
    show(found) {
      table.show(found.pods, (a, b) => a.pod === b.pod);
      return found.pods.length;
    },
  });
  return {
    ...view,
    opened() {
      view.opened();
      live.addEventListener("layout", view.update);
    },
    closed() {
      view.closed();
      live.removeEventListener("layout", view.update);
    },
  };
}

function waitsFor(row) {
  if (row.place === "active") return "the pods before it";
  if (row.place === "backoff" && row.until)
    return `its backoff to end in ${duration(Math.max(0, row.until - Date.now() / 1000))}; ${row.message}`;
  return row.message && row.place !== "gated" ? row.message : row.plugins.join(", ");
}
