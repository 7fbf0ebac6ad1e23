// One node: its resources, what is requested of them, and its pods.

import { address, ask, count, facts, h, link, percent, podLink, time, yamlOf } from "./dom.js";
import { Table } from "./table.js";

export function nodeView(name) {
  return {
    title: name,
    element: h("section", {}, h("h1", {}, name), h("p", { class: "empty" }, "Asking…")),
    async opened() {
      try {
        this.element.replaceChildren(...shown(await ask("node", { name })));
      } catch (error) {
        this.element.replaceChildren(h("h1", {}, name), h("p", { class: "problem" }, error.message));
      }
    },
  };
}

function* shown(node) {
  yield h("h1", {}, h("span", { class: "kind" }, "node "), node.name);
  if (node.isCordoned) yield h("p", { class: "problem" }, "It is cordoned: no pods are placed here.");
  const about = [node.zone ? `Zone ${node.zone}` : "", node.created ? ["created ", time(node.created)] : ""];
  if (node.zone || node.created)
    yield h("p", { class: "quiet" }, about[0], node.zone && node.created ? "; " : "", about[1], ".");
  for (const each of node.conditions.filter((each) => each.isBad))
    yield h("p", { class: "problem" }, `${each.type} is ${each.status}: ${each.message || each.reason}`);
  yield h("div", { class: "bars" }, node.amounts.map(bar));
  if (node.taints.length)
    yield h(
      "p",
      {},
      "Taints: ",
      node.taints.map((taint) => h("code", { class: "tag" }, taint)),
    );
  yield h(
    "p",
    {},
    link(["what-if", "drain", node.name], "What if it were drained?"),
    " · ",
    link(["what-if", "lose", node.name], "What if it were lost?"),
  );
  yield h("h2", {}, `Pods (${count(node.podCount)})`);
  const pods = new Table({
    label: `Pods on ${node.name}`,
    empty: "There are no pods on it.",
    columns: [
      { title: "Pod", width: 12, grow: 3, cell: (pod) => podLink(pod.pod), sort: (pod) => pod.pod },
      { title: "cpu", width: 6, number: true, cell: (pod) => pod.cpu, sort: (pod) => pod.cpuThousandths },
      { title: "Memory", width: 6, number: true, cell: (pod) => pod.memory, sort: (pod) => pod.memoryBytes },
      {
        title: "Priority",
        width: 8,
        number: true,
        wide: true,
        cell: (pod) => count(pod.priority),
        sort: (pod) => pod.priority,
      },
    ],
    onOpen: (pod) => {
      location.hash = address("pod", pod.pod);
    },
  });
  pods.show(node.pods);
  yield pods.element;
  if (node.pods.length < node.podCount)
    yield h("p", { class: "quiet" }, `The first ${count(node.pods.length)} are listed.`);
  if (node.conditions.length)
    yield h(
      "details",
      { open: node.conditions.some((each) => each.isBad) },
      h("summary", {}, "Conditions"),
      facts(
        ["Condition", "Status", "Since", "Reason"],
        node.conditions.map((each) => [
          each.type,
          h("span", { class: each.isBad ? "bad" : null }, each.status),
          each.since ? time(each.since) : "",
          [each.reason, each.message].filter(Boolean).join(": "),
        ]),
      ),
    );
  yield yamlOf("node", node.name);
  yield h(
    "details",
    {},
    h("summary", {}, "Labels"),
    h(
      "ul",
      { class: "plain" },
      Object.entries(node.labels).map(([key, value]) => h("li", {}, h("code", {}, `${key}=${value}`))),
    ),
  );
}

function bar(amount) {
  const meter = h(
    "div",
    {
      class: "meter",
      role: "meter",
      "aria-label": amount.resource,
      "aria-valuemin": 0,
      "aria-valuemax": 100,
      "aria-valuenow": Math.round(amount.filled * 100),
    },
    h("i", { class: amount.filled >= 0.9 ? "high" : "" }),
  );
  meter.firstChild.style.width = percent(Math.min(amount.filled, 1));
  return h(
    "div",
    { class: "bar" },
    h("strong", {}, amount.resource),
    meter,
    h("span", {}, `${amount.requested} of ${amount.allocatable}, ${percent(amount.filled)}`),
  );
}
