// All pods, with filters by name, namespace, scheduler and state.

import { address, count, counted, h, nodeLink, podLink, time } from "./dom.js";
import { PLACES } from "./queue.js";
import { Table, searchableView } from "./table.js";

const REFRESH = 3000;
const STATES = {
  ...PLACES,
  trying: "being decided right now",
  binding: "being bound to its node",
  bound: "on a node",
};

export function podsView(query) {
  const table = new Table({
    label: "Pods",
    empty: "No pods match.",
    columns: [
      { title: "Pod", width: 11, grow: 3, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "State", width: 9.5, cell: (row) => row.state },
      {
        title: "Node",
        width: 9,
        grow: 2,
        cell: (row) => (row.node ? nodeLink(row.node) : ""),
        sort: (row) => row.node,
      },
      { title: "Scheduler", width: 11, grow: 1, wide: true, cell: (row) => row.scheduler },
      {
        title: "Priority",
        width: 7,
        number: true,
        wide: true,
        cell: (row) => count(row.priority),
        sort: (row) => row.priority,
      },
      {
        title: "Created",
        width: 10,
        wide: true,
        cell: (row) => (row.created ? time(row.created) : ""),
        sort: (row) => row.created ?? 0,
        descending: true,
      },
    ],
    onOpen: (row) => {
      location.hash = address("pod", row.pod);
    },
  });
  const choices = Object.fromEntries(
    ["namespace", "scheduler", "state"].map((name) => [
      name,
      h("select", { id: name }, option(query.get(name) ?? "", name)),
    ]),
  );
  return searchableView({
    title: "Pods",
    door: "pods",
    label: "Find pods",
    table,
    query,
    refresh: REFRESH,
    choices,
    show(found) {
      fill(choices.namespace, "namespace", found.namespaces);
      fill(choices.scheduler, "scheduler", found.schedulers);
      fill(choices.state, "state", Object.keys(STATES), (state) => `${state} (${count(found.counts[state] ?? 0)})`);
      table.show(found.pods, (a, b) => a.pod === b.pod);
      return found.pods.length;
    },
    note(found) {
      const state = choices.state.value;
      const total = Object.values(found.counts).reduce((sum, each) => sum + each, 0);
      const shown = state ? (found.counts[state] ?? 0) : total;
      const left = found.leftOut ? `; the first ${count(found.pods.length)} are listed` : "";
      return `${counted(shown, "pod")}${left}. ${state ? (STATES[state] ?? "") : ""}`;
    },
  });
}

function option(value, name, text = value || `any ${name}`) {
  return h("option", { value }, text);
}

/** Offers these values, keeping the one that is chosen. */
function fill(choice, name, values, text = (value) => value) {
  const chosen = choice.value;
  const offered = new Set(["", ...values, chosen]);
  choice.replaceChildren(...[...offered].map((value) => option(value, name, value ? text(value) : undefined)));
  choice.value = chosen;
}
