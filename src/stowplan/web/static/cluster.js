// The cluster: a square for each node, by zone, filled by the share of a resource that is requested.

import { collator, colour, count, counted, eachFrame, h, percent, searchField } from "./dom.js";
import { live } from "./live.js";
import { FULL, GAP, NONE, TILE, Zone } from "./zone.js";

const MAX_ZONES = 60;
const FEW = 120; // up to so many nodes have room for their names

export function clusterView(query) {
  return new ClusterView(query.get("resource") ?? live.resource, query.get("search") ?? "");
}

class ClusterView {
  title = "Cluster";

  constructor(resource, search) {
    this.search = search.toLowerCase();
    this.zones = [];
    this.tip = h("p", { class: "tip", hidden: true });
    this.said = h("p", { class: "unseen", "aria-live": "polite" });
    this.choice = h("select", { id: "resource", onchange: () => this.#choose() });
    this.field = searchField(search, "part of a name", () => this.#seek());
    this.matches = h("span", { class: "quiet" });
    this.body = h("div", { class: "zones" });
    this.legend = h(
      "p",
      { class: "legend" },
      swatch("room", "free"),
      swatch("fill", "requested"),
      swatch("fill-high", "90% and more"),
      swatch("cordoned", "cordoned"),
      swatch("tainted", "tainted: only for pods that tolerate it"),
    );
    this.element = h(
      "section",
      {},
      h("h1", {}, "Cluster"),
      h(
        "div",
        { class: "controls" },
        h("label", { for: "resource" }, "Filled by"),
        this.choice,
        h("label", { for: "search" }, "Find nodes"),
        this.field,
        this.matches,
      ),
      this.legend,
      this.body,
      this.tip,
      this.said,
    );
    this.draw = eachFrame(() => this.#draw());
    this.onLayout = () => this.#lay();
    if (resource !== live.resource) live.show(resource);
    this.dark = matchMedia("(prefers-color-scheme: dark)");
  }

  opened() {
    live.addEventListener("layout", this.onLayout);
    live.addEventListener("news", this.draw);
    this.dark.addEventListener("change", this.draw);
    this.resizing = new ResizeObserver(() => this.#size());
    this.resizing.observe(this.body);
    this.#lay();
  }

  closed() {
    live.removeEventListener("layout", this.onLayout);
    live.removeEventListener("news", this.draw);
    this.dark.removeEventListener("change", this.draw);
    this.resizing.disconnect();
  }

  #choose() {
    live.show(this.choice.value);
    this.#remember();
  }

  #seek() {
    this.search = this.field.value.toLowerCase();
    this.#remember();
    this.draw();
  }

  #remember() {
    const query = new URLSearchParams({ resource: live.resource });
    if (this.search) query.set("search", this.field.value);
    history.replaceState(null, "", `#/?${query}`);
  }

  #lay() {
    const { cluster } = live;
    if (!cluster) {
      this.body.replaceChildren(h("p", { class: "empty" }, "Waiting for the cluster…"));
      return;
    }
    const resources = ["fullest", ...cluster.resources];
    this.choice.replaceChildren(
      ...resources.map((each) =>
        h(
          "option",
          { value: each, selected: each === live.resource },
          each === "fullest" ? "the fullest of cpu, memory and pods" : each,
        ),
      ),
    );
    this.cordoned = new Set(cluster.cordoned);
    this.tainted = new Set(cluster.tainted);
    this.lower = cluster.nodes.map((name) => name.toLowerCase());
    this.zones = inZones(cluster).map(([name, rows]) => new Zone(this, name, rows));
    this.body.replaceChildren(...this.zones.map((zone) => zone.element));
    if (!this.zones.length)
      this.body.replaceChildren(h("p", { class: "empty" }, "The cluster has no nodes."));
    this.#size();
  }

  #size() {
    const width = this.body.clientWidth;
    if (!width || !live.cluster) return;
    const nodes = live.cluster.nodes.length;
    if (nodes <= FEW) {
      for (const zone of this.zones) zone.size(TILE.wide, TILE.high, width);
      this.draw();
      return;
    }
    const room = Math.max(window.innerHeight - 220 - 45 * this.zones.length, 240) * width;
    const side = Math.max(7, Math.min(40, Math.floor(Math.sqrt(room / Math.max(nodes, 1)) - GAP)));
    for (const zone of this.zones) zone.size(side, side, width);
    this.draw();
  }

  #draw() {
    if (!live.cluster || live.fill.length !== live.cluster.nodes.length) return;
    const found = this.search ? this.lower.filter((name) => name.includes(this.search)).length : 0;
    this.matches.textContent = this.search ? counted(found, "node") : "";
    const paint = Object.fromEntries(
      ["room", "fill", "fill-high", "cordoned", "tainted", "chosen", "ink"].map((name) => [
        name,
        colour(name),
      ]),
    );
    for (const zone of this.zones) zone.draw(paint);
  }

  /** A short description of a node. */
  words(row) {
    const filled = live.fill[row];
    const { resource } = live;
    const what = resource === "fullest" ? "its fullest resource" : resource;
    const part = filled === NONE ? `has no ${resource}` : `${percent(filled / FULL)} of ${what} requested`;
    const marks = [this.cordoned.has(row) && "cordoned", this.tainted.has(row) && "tainted"].filter(Boolean);
    return [live.cluster.nodes[row], part, ...marks].join(" · ");
  }
}

/** [name, rows] by zone, each in the order of names. */
function inZones(cluster) {
  const { nodes, zones, zoneOf } = cluster;
  const groups = new Map();
  nodes.forEach((_, row) => {
    const zone = zones.length > MAX_ZONES ? -2 : zoneOf[row];
    if (!groups.has(zone)) groups.set(zone, []);
    groups.get(zone).push(row);
  });
  const named = (zone) =>
    zone === -2
      ? `${count(zones.length)} zones`
      : zone === -1
        ? zones.length
          ? "no zone"
          : "all nodes"
        : zones[zone];
  const found = [...groups].map(([zone, rows]) => [
    named(zone),
    rows.sort((a, b) => collator.compare(nodes[a], nodes[b])),
  ]);
  return found.sort(([a], [b]) => collator.compare(a, b));
}

function swatch(name, text) {
  return h("span", {}, h("i", { class: `swatch ${name}` }), text);
}
