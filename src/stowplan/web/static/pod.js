// A pod: its history, what it waits for, and a decision on it as a table.

import {
  ask,
  address,
  count,
  counted,
  duration,
  facts as factTable,
  h,
  link,
  nodeLink,
  podLink,
  time,
  yamlOf,
} from "./dom.js";
import { Evidence } from "./evidence.js";
import { live } from "./live.js";
import { picture } from "./picture.js";

const PLACES = {
  active: "It is in the active queue and will be attempted after the pods before it.",
  backoff: "Its last attempt failed; it is attempted again after its backoff.",
  unschedulable: "No node fits. It is requeued when the cluster changes in a way that may help.",
  gated: "It is gated by a plugin and not attempted until the gate is removed.",
  permit: "It has a node and waits for a plugin to permit binding.",
  trying: "It is being decided or bound right now.",
};
const REASONS_SHOWN = 8;
const TIES_SHOWN = 12;

/** Without a number, the newest decision; it is replaced as soon as there is a newer one. */
export function podView(key, number) {
  const element = h("section", {}, h("h1", {}, key), h("p", { class: "empty" }, "Loading…"));
  let last = Infinity;

  async function load() {
    const [answer, facts] = await Promise.all([
      ask("decisions", { pod: key, number }).catch((error) => ({ attempts: [], error: error.message })),
      ask("pod", { pod: key }).catch(() => null),
    ]);
    last = answer.attempts[0]?.number ?? 0;
    element.replaceChildren(...sections(key, answer, facts));
  }

  function follow() {
    if (live.now.decisions.some((row) => row.pod === key && row.number > last)) {
      last = Infinity; // until it has been loaded
      load();
    }
  }

  return {
    title: key,
    element,
    opened() {
      if (!number) live.addEventListener("news", follow);
      load();
    },
    closed() {
      live.removeEventListener("news", follow);
    },
  };
}

function* sections(key, answer, facts) {
  const { decision, waiting, attempts } = answer;
  const evidence = decision ? new Evidence(decision) : null;
  yield h("h1", {}, h("span", { class: "kind" }, "pod "), key);
  if (answer.error) yield h("p", { class: "problem" }, answer.error);
  if (evidence) yield* headline(evidence);
  if (waiting) yield waits(key, waiting, decision);
  yield h("h2", {}, "History");
  yield history(key, attempts, facts, decision, waiting);
  if (facts) yield aboutPod(facts);
  if (evidence) yield picture(evidence);
  if (attempts.length) yield events(key, attempts);
  if (facts) yield yamlOf("pod", key);
}

function* headline(evidence) {
  const { decision, winner, second } = evidence;
  if (decision.node) {
    yield h(
      "p",
      { class: "headline placed" },
      "Placed on ",
      nodeLink(decision.node),
      ` in ${duration(decision.seconds)}, attempt ${count(decision.attempt)}.`,
    );
  } else {
    const what = decision.outcome === "error" ? "The attempt failed" : "No node was found";
    yield h("p", { class: "headline pending" }, `${what}, attempt ${count(decision.attempt)}.`);
    if (decision.nominated) yield evictions(decision);
    if (decision.preFilter)
      yield h(
        "p",
        {},
        h("b", {}, decision.preFilter.plugin),
        ` rejected it before any node was looked at (PreFilter): ${decision.preFilter.reasons.join(", ")}.`,
      );
    yield h("p", { class: "message" }, decision.message || decision.error);
  }
  if (decision.group) yield h("p", {}, decision.group);
  for (const note of decision.notes) yield h("p", {}, note);
  const nodes = evidence.rows.length;
  if (evidence.fit.length) {
    const skipped = evidence.count("skipped");
    const left = skipped ? `; ${count(skipped)} were not evaluated` : "";
    const fit = `${count(evidence.fit.length)} of ${counted(nodes, "node")} fit${left}. `;
    yield h("div", { class: "fit" }, fit, winner && second ? closeness(evidence) : "");
  }
  const reasons = decision.preFilter ? [] : evidence.reasons;
  if (reasons.length) {
    const more = reasons.length - REASONS_SHOWN;
    yield h(
      "ul",
      { class: "reasons" },
      reasons
        .slice(0, REASONS_SHOWN)
        .map(([reason, number]) => h("li", {}, h("b", {}, count(number)), ` ${reason}`)),
      more > 0 ? h("li", {}, `and ${counted(more, "other reason")}`) : null,
    );
  }
}

function evictions(decision) {
  const { victims } = decision;
  return h(
    "p",
    { class: "victims" },
    "Nominated to ",
    nodeLink(decision.nominated),
    victims.length ? `; evicts ${counted(victims.length, "pod")} of lower priority: ` : ".",
    listed(victims.map((victim) => podLink(victim.pod))),
  );
}

/** Elements with commas between them, and a full stop. */
function listed(elements) {
  return elements.flatMap((each, place) => [each, place + 1 < elements.length ? ", " : "."]);
}

/** The events that the scheduler writes about its attempts, as `kubectl describe` shows them. */
function events(key, attempts) {
  const rows = attempts.map((each) => {
    const [kind, reason] = each.node ? ["Normal", "Scheduled"] : ["Warning", "FailedScheduling"];
    const text = each.node ? `Successfully assigned ${key} to ${each.node}` : each.message;
    return [reason, kind, time(each.time), text];
  });
  return h("details", {}, h("summary", {}, "Events"), factTable(["Reason", "Type", "Time", "Message"], rows));
}

function closeness(evidence) {
  const { winner, second } = evidence;
  if (winner.total === null) return "";
  const by = winner.total - second.total;
  if (!by) {
    const tied = evidence.fit.filter((row) => row.total === winner.total && row !== winner);
    const links = tied.map((row) => nodeLink(row.name));
    if (tied.length <= TIES_SHOWN) return h("span", {}, "Chosen at random; tied with ", listed(links));
    return h(
      "details",
      { class: "ties" },
      h("summary", {}, `Chosen at random; tied with ${counted(tied.length, "node")}`),
      listed(links),
    );
  }
  const lead = evidence
    .lead(second)
    .slice(0, 3)
    .map(([plugin, points]) => `${plugin} ${points > 0 ? "+" : "−"}${Math.abs(points)}`);
  return h(
    "span",
    {},
    "Second was ",
    nodeLink(second.name),
    `, ${counted(by, "point")} behind (${lead.join(", ")}).`,
  );
}

function waits(key, waiting, decision) {
  const wakes = Object.entries(Object.keys(waiting.wakes).length ? waiting.wakes : (decision?.wakes ?? {}));
  const answer = h("div", { "aria-live": "polite" });
  const press = async (event) => {
    event.target.disabled = true;
    answer.replaceChildren(h("p", { class: "quiet" }, "Trying changes on a copy of the cluster…"));
    try {
      answer.replaceChildren(...changes(await ask("changes", { pod: key })));
    } catch (error) {
      answer.replaceChildren(h("p", { class: "problem" }, error.message));
    }
    event.target.disabled = false;
  };
  return h(
    "section",
    { class: "waits" },
    h("h2", {}, "What it waits for"),
    h(
      "p",
      {},
      PLACES[waiting.place] ?? waiting.place,
      waiting.plugins.length ? ` Plugins: ${waiting.plugins.join(", ")}.` : "",
      waiting.message ? ` It says: ${waiting.message}.` : "",
      waiting.until ? ` Its backoff ends in ${duration(Math.max(0, waiting.until - Date.now() / 1000))}.` : "",
    ),
    wakes.length
      ? h(
          "dl",
          { class: "wakes" },
          wakes.flatMap(([plugin, text]) => [
            h("dt", {}, plugin),
            h("dd", {}, `requeues it after: ${text}`),
          ]),
        )
      : null,
    h("button", { type: "button", onclick: press }, "What would make it fit?"),
    answer,
  );
}

function* changes(found) {
  if (found.node)
    yield h("p", {}, "In the cluster as it is now, it would go to ", nodeLink(found.node), ".");
  if (!found.changes.length)
    yield h("p", {}, "No single change of a weight, request, label, toleration, priority or cordon would help.");
  yield h(
    "ul",
    {},
    found.changes.map((each) => h("li", {}, each.text, " → ", nodeLink(each.node))),
  );
  if (!found.isComplete) yield h("p", { class: "quiet" }, "Time ran out before all changes were tried.");
}

function history(key, attempts, facts, decision, waiting) {
  const events = [];
  if (facts?.created)
    events.push([facts.created, h("span", {}, facts.owner ? `created by ${facts.owner}` : "created")]);
  for (const attempt of attempts) {
    const isShown = attempt.number === decision?.number;
    const what = attempt.node
      ? h("span", {}, "placed on ", nodeLink(attempt.node))
      : h("span", {}, isShown ? attempt.outcome : `${attempt.outcome}: ${attempt.message}`);
    events.push([
      attempt.time,
      h(
        "span",
        { class: isShown ? "current" : "" },
        link(["pod", key, String(attempt.number)], `attempt ${attempt.attempt}`),
        " ",
        what,
        isShown ? " (shown here)" : "",
      ),
    ]);
  }
  events.sort(([a], [b]) => a - b);
  const now = facts?.node
    ? h(
        "span",
        {},
        facts.isAssumed ? "being bound to " : "on ",
        nodeLink(facts.node),
        facts.phase ? `, ${facts.phase}` : "",
      )
    : waiting
      ? `waiting: ${waiting.place}`
      : "no longer known to the scheduler";
  return h(
    "ol",
    { class: "life" },
    events.map(([when, what]) => h("li", {}, time(when), " ", what)),
    h("li", {}, h("b", {}, "now"), " ", now),
  );
}

function aboutPod(facts) {
  const wants =
    Object.entries(facts.requests)
      .map(([name, amount]) => `${name} ${amount}`)
      .join(", ") || "nothing";
  const labels = Object.entries(facts.labels).map(([name, value]) =>
    h("code", { class: "tag" }, `${name}=${value}`),
  );
  return h(
    "p",
    {},
    `Requests ${wants}; priority ${count(facts.priority)}; scheduler ${facts.scheduler}. `,
    facts.group ? ["Pod group ", link(["group", facts.group], facts.group), ". "] : null,
    labels,
    " ",
    h(
      "a",
      { href: `${address("what-if")}?${new URLSearchParams({ more: facts.pod })}` },
      "What if there were more pods like it?",
    ),
  );
}
