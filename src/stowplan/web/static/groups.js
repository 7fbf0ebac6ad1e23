// Pod groups: which wait and why; and one group with its members, domains and what would let it start.

import { address, ago, ask, count, counted, duration, h, link, nodeLink, podLink } from "./dom.js";
import { Table, searchableView } from "./table.js";

const STATES = {
  waits: "attempted, and does not fit",
  started: "started, and more of its pods wait",
  preempting: "waiting until evicted pods are gone",
  gated: "not attempted yet",
  empty: "no pods",
  missing: "named by pods, but not created",
  placed: "all pods have a node",
};
const MEMBERS = { placed: "placed", fits: "fits", evicts: "fits after evictions", waits: "does not fit" };
const REFRESH = 2000;
const NOT_READ =
  "This scheduler does not read pod groups. Start it with --groups for those of scheduler-plugins and " +
  "Volcano, or with --feature-gates=GenericWorkload=true,GangScheduling=true for those of Kubernetes.";

export function groupsView(query) {
  const table = new Table({
    label: "Pod groups",
    empty: "There are no pod groups.",
    columns: [
      {
        title: "Group",
        width: 11,
        grow: 2,
        cell: (row) => link(["group", row.group], row.group),
        sort: (row) => row.group,
      },
      { title: "State", width: 6.5, cell: (row) => row.state },
      {
        title: "Placed",
        width: 6.5,
        number: true,
        hint: "Placed pods of the minimum",
        cell: (row) => (row.minCount ? `${count(row.placed + row.finished)} of ${count(row.minCount)}` : "–"),
        sort: (row) => row.placed + row.finished - row.minCount,
      },
      {
        title: "Waits",
        width: 5.5,
        number: true,
        wide: true,
        cell: (row) => (row.state === "placed" ? "" : ago(row.since)),
        sort: (row) => (row.state === "placed" || !row.since ? 0 : row.now - row.since),
      },
      { title: "Why", width: 12, grow: 5, cell: reason },
      { title: "API", width: 16, wide: true, cell: (row) => row.apiVersion },
    ],
    onOpen: (row) => {
      location.hash = address("group", row.group);
    },
  });
  return searchableView({
    title: "Groups",
    heading: "Pod groups",
    door: "groups",
    label: "Find groups",
    table,
    query,
    refresh: REFRESH,
    states: STATES,
    note: (found) => (found.isReading ? "" : NOT_READ),
    show(found) {
      table.show(found.groups, (a, b) => a.group === b.group && a.apiVersion === b.apiVersion);
      return found.groups.length;
    },
  });
}

function reason(row) {
  return row.state === "placed" ? "" : row.why[0] || row.message;
}

export function groupView(name) {
  const title = () => h("h1", {}, h("span", { class: "kind" }, "group "), name);
  return {
    title: name,
    element: h("section", {}, title(), h("p", { class: "empty" }, "Asking…")),
    async opened() {
      try {
        const found = await ask("group", { group: name });
        const changes = h("div", { "aria-live": "polite" });
        this.element.replaceChildren(title(), ...shown(found, changes));
        if (["waits", "started"].includes(found.state) && found.fitting !== null) await offer(name, changes);
      } catch (error) {
        this.element.replaceChildren(title(), h("p", { class: "problem" }, error.message));
      }
    },
  };
}

/** What would let it start; it takes a moment longer, and comes after the rest. */
async function offer(name, element) {
  element.replaceChildren(
    h("h2", {}, "What would let it start?"),
    h("p", { class: "quiet" }, "Trying changes…"),
  );
  const found = await ask("group", { group: name, changes: "true" });
  const texts = (found.changes ?? []).map((each) => (each.byPreemption ? `${each.text} (evicts pods)` : each.text));
  const note = found.isComplete ? "" : "Time ran out before all changes were tried.";
  element.replaceChildren(
    h("h2", {}, "What would let it start?"),
    texts.length
      ? h(
          "ul",
          {},
          texts.map((text) => h("li", {}, text)),
        )
      : h("p", { class: "quiet" }, "No single change that was tried would."),
    h("p", { class: "quiet" }, note),
  );
}

function* shown(group, changes) {
  const facts = [
    group.apiVersion,
    group.policy === "basic" ? "basic policy" : `at least ${count(group.minCount)} together`,
    group.queue ? `queue ${group.queue}` : null,
    `${count(group.placed)} of ${counted(group.members, "pod")} placed`,
    group.finished ? `${count(group.finished)} finished` : null,
    group.since ? `waits ${duration(Math.max(0, group.now - group.since))}` : null,
  ];
  yield h("p", {}, h("strong", {}, STATES[group.state] ?? group.state), " · ", facts.filter(Boolean).join(" · "));
  for (const sentence of group.why) yield h("p", {}, sentence);
  if (group.message) yield h("p", {}, h("code", {}, group.message));
  yield changes;
  if (group.domains.length) {
    yield h("h2", {}, `Domains (${group.level})`);
    const domains = new Table({
      label: "Domains",
      lines: 8,
      columns: [
        { title: "Domain", width: 8, grow: 2, cell: (row) => row.name },
        { title: "Nodes", width: 5, number: true, cell: (row) => count(row.nodes), sort: (row) => row.nodes },
        { title: "Fit", width: 5, number: true, cell: (row) => count(row.count), sort: (row) => row.count },
        { title: "Lacks", width: 8, grow: 3, cell: (row) => row.lacks },
      ],
    });
    domains.show(group.domains);
    yield domains.element;
  }
  yield h("h2", {}, `Pods (${count(group.pods.length)})`);
  const pods = new Table({
    label: "Pods of the group",
    empty: "It has no pods.",
    columns: [
      { title: "Pod", width: 10, grow: 2, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "State", width: 7, cell: (row) => MEMBERS[row.state] },
      { title: "Node", width: 6, grow: 1, cell: (row) => (row.node ? nodeLink(row.node) : "–"), sort: (row) => row.node },
      { title: "Why", width: 10, grow: 4, wide: true, cell: (row) => row.message },
    ],
    onOpen: (row) => {
      location.hash = address("pod", row.pod);
    },
  });
  pods.show(group.pods.toSorted((a, b) => (b.state === "waits") - (a.state === "waits")));
  yield pods.element;
}
