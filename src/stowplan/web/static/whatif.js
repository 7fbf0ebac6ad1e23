// What if: makes changes to a copy of the cluster and shows where pods would go.

import { address, ask, count, h, nodeLink, podLink } from "./dom.js";
import { live } from "./live.js";
import { Table } from "./table.js";

const ENDINGS = { gone: "nothing would recreate it" };
const FIELDS = ["more", "moreCount", "moreNodes", "moreNodesCount", "drain", "lose", "manifests", "config"];

export function whatIfView(path, query) {
  if (path.length === 2) query.set(path[0], path[1]); // #/what-if/drain/NODE
  const value = (name) => query.get(name) ?? "";
  const input = (name, label, more = {}) =>
    h(
      "p",
      {},
      h("label", { for: name }, label),
      h("input", { id: name, name, value: value(name), spellcheck: "false", autocomplete: "off", ...more }),
    );
  const number = (name) =>
    h(
      "p",
      { class: "short" },
      h("label", { for: name }, "How many"),
      h("input", { id: name, name, type: "number", min: 1, max: 10000, value: value(name) || "1" }),
    );
  const text = (name, label, hint) =>
    h(
      "details",
      { open: Boolean(value(name)) },
      h("summary", {}, label),
      h(
        "textarea",
        { id: name, name, "aria-label": label, rows: 10, spellcheck: "false", placeholder: hint },
        value(name),
      ),
    );
  const nodes = h("datalist", { id: "known-nodes" });
  const form = h(
    "form",
    {
      class: "what-if",
      onsubmit: (event) => {
        event.preventDefault();
        submit();
      },
    },
    h(
      "fieldset",
      {},
      h("legend", {}, "Pods"),
      input("more", "More pods like", { placeholder: "namespace/pod" }),
      number("moreCount"),
    ),
    h(
      "fieldset",
      {},
      h("legend", {}, "Nodes"),
      input("moreNodes", "More nodes like", { list: "known-nodes", placeholder: "node" }),
      number("moreNodesCount"),
      input("drain", "Drained", { list: "known-nodes", placeholder: "node, node" }),
      input("lose", "Lost", { list: "known-nodes", placeholder: "node, node" }),
    ),
    text("manifests", "Manifests to add or replace", "apiVersion: v1\nkind: Pod\n…"),
    text(
      "config",
      "Another scheduler configuration",
      "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n…",
    ),
    h(
      "p",
      {},
      h(
        "label",
        {},
        h("input", { type: "checkbox", id: "afresh", name: "afresh", checked: query.has("afresh") }),
        " place every pod anew",
      ),
    ),
    h(
      "p",
      {},
      h(
        "label",
        {},
        h("input", { type: "checkbox", id: "gang", name: "gang", checked: query.has("gang") }),
        " pods of each added Job start together",
      ),
    ),
    h(
      "p",
      {},
      h("button", { type: "submit" }, "Ask"),
      " ",
      h("span", { class: "quiet" }, "Runs on a copy: nothing is changed. Pods that are pending now are decided too."),
    ),
    nodes,
  );
  const answer = h("div", { "aria-live": "polite" });

  async function submit() {
    const given = Object.fromEntries(FIELDS.map((name) => [name, form.elements[name].value.trim()]));
    const switches = { afresh: form.elements.afresh.checked, gang: form.elements.gang.checked };
    remember(given, switches);
    answer.replaceChildren(h("p", { class: "quiet" }, "Computing…"));
    const button = form.querySelector("button");
    button.disabled = true;
    try {
      answer.replaceChildren(
        ...outcome(
          await ask(
            "what-if",
            {},
            {
              method: "POST",
              headers: { "Content-Type": "application/json" },
              body: JSON.stringify(question(given, switches)),
            },
          ),
        ),
      );
    } catch (error) {
      answer.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    button.disabled = false;
  }

  return {
    title: "What if",
    element: h("section", {}, h("h1", {}, "What if"), form, answer),
    opened() {
      const names = live.cluster?.nodes ?? [];
      nodes.replaceChildren(...names.slice(0, 2000).map((name) => h("option", { value: name })));
      if (FIELDS.some((name) => value(name)) || query.has("afresh")) submit(); // the link is the question
    },
  };
}

function question(given, switches) {
  const listed = (text) => text.split(/[\s,]+/).filter(Boolean);
  const several = (names, number) => listed(names).map((name) => ({ name, count: Number(number) || 1 }));
  return {
    manifests: given.manifests,
    config: given.config,
    ...switches,
    more: several(given.more, given.moreCount),
    moreNodes: several(given.moreNodes, given.moreNodesCount),
    drain: listed(given.drain),
    lose: listed(given.lose),
  };
}

function remember(given, switches) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    const isUsed = !name.endsWith("Count") || given[name.slice(0, -5)];
    if (value && isUsed) query.set(name, value);
  }
  for (const [name, isOn] of Object.entries(switches)) if (isOn) query.set(name, "1");
  history.replaceState(null, "", `#/what-if?${query}`);
}

function* outcome(found) {
  yield h("h2", {}, found.changes.length ? `If: ${found.changes.join("; ")}` : "As it is now");
  if (!found.pods.length) yield h("p", {}, "There are no pods to decide.");
  yield h(
    "dl",
    { class: "counts" },
    Object.entries(found.counts).map(([ending, number]) =>
      h("div", {}, h("dt", {}, ending), h("dd", {}, count(number))),
    ),
  );
  const groups = (found.groups ?? []).toSorted((a, b) => a.starts - b.starts);
  if (groups.length)
    yield h(
      "ul",
      {},
      groups.map(({ group, starts, text }) =>
        h("li", {}, `Pod group ${group} would ${starts ? "start" : "wait"}: ${text}`),
      ),
    );
  const table = new Table({
    label: "Where pods would go",
    empty: "",
    columns: [
      { title: "Pod", width: 11, grow: 2, cell: (row) => podLink(row.pod), sort: (row) => row.pod },
      { title: "Cause", width: 7, wide: true, cell: (row) => row.cause },
      { title: "Outcome", width: 7, cell: (row) => row.outcome },
      { title: "Node", width: 9, grow: 2, cell: where, sort: (row) => row.node ?? "" },
      { title: "And", width: 12, grow: 4, cell: besides },
    ],
    rowClass: (row) => ({ placed: "scheduled", pending: "unschedulable" })[row.outcome] ?? row.outcome,
    onOpen: (row) => {
      location.hash = address("pod", row.pod);
    },
  });
  table.show(found.pods);
  if (found.pods.length) yield table.element;
}

function where(row) {
  if (!row.node) return row.before ? `from ${row.before}` : "";
  const from = row.before && row.before !== row.node ? ` from ${row.before}` : "";
  return h("span", {}, nodeLink(row.node), from);
}

function besides(row) {
  const parts = [row.message || ENDINGS[row.outcome]];
  if (row.victims.length) parts.push(`evicts ${row.victims.join(", ")}`);
  if (row.evictedBy) parts.push(`evicted by ${row.evictedBy}`);
  return parts.filter(Boolean).join("; ");
}
