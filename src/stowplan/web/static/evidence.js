// A decision by node: the verdict of every filter and the points of every score plugin.

export class Evidence {
  /** `decision` as the server sends it. */
  constructor(decision) {
    this.decision = decision;
    this.filters = decision.filters.filter((filter) => filter.statuses.length);
    this.quietFilters = decision.filters
      .filter((filter) => !filter.statuses.length)
      .map((filter) => filter.plugin);
    this.scores = decision.scores;
    this.rows = this.#rows();
    this.fit = this.rows.filter((row) => row.state === "fits" || row.state === "chosen");
    this.fit.sort(
      (a, b) => (b.total ?? 0) - (a.total ?? 0) || (b.state === "chosen") - (a.state === "chosen"),
    );
    this.winner = this.rows.find((row) => row.state === "chosen") ?? null;
    /** The best of the others. */
    this.second = this.winner ? (this.fit.find((row) => row !== this.winner) ?? null) : null;
  }

  #rows() {
    const { decision } = this;
    const place = new Map();
    (decision.lookedAt ?? [...decision.nodes.keys()]).forEach((node, at) => place.set(node, at));
    const skipped = new Set(decision.notLookedAt);
    let fitting = 0;
    return decision.nodes.map((name, node) => {
      const at = place.get(node);
      const row = { name, state: "fits", total: null, rejections: [], points: [] };
      if (decision.preFilter) return { ...row, state: "rejected", rejections: [decision.preFilter] };
      if (at === undefined) return { ...row, state: decision.narrowedBy.length ? "apart" : "skipped" };
      if (decision.overruled[at]) row.rejections.push(decision.overruled[at]);
      for (const filter of this.filters) {
        const status = filter.column[at];
        if (status) row.rejections.push({ ...filter.statuses[status - 1], plugin: filter.plugin });
      }
      if (skipped.has(at)) return { ...row, state: "skipped", rejections: [] };
      if (row.rejections.length) return { ...row, state: "rejected" };
      if (decision.chosen || decision.isScored) {
        const own = fitting++;
        row.points = this.scores.map((column) => column.scores[own] * column.weight);
        if (decision.isScored)
          row.total = decision.hasScorers ? row.points.reduce((sum, each) => sum + each, 0) : 1;
      }
      if (name === decision.chosen) row.state = "chosen";
      return row;
    });
  }

  count(state) {
    return this.rows.filter((row) => row.state === state).length;
  }

  /** [plugin and reason, how many nodes], the most frequent first: by the first filter that rejected each. */
  get reasons() {
    const counts = new Map();
    for (const row of this.rows) {
      const first = row.rejections[0];
      if (row.state === "rejected" && first) {
        const text = `${first.plugin}: ${first.reasons.join(", ")}`;
        counts.set(text, (counts.get(text) ?? 0) + 1);
      }
    }
    return [...counts].sort(([, a], [, b]) => b - a);
  }

  /** [plugin, points] by which the winner is ahead of another node, the largest first. */
  lead(other) {
    return this.scores
      .map((column, place) => [column.plugin, this.winner.points[place] - other.points[place]])
      .filter(([, points]) => points)
      .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a));
  }
}

/** Why a filter rejected a node. */
export function rejection(row, plugin) {
  return row.rejections.find((each) => each.plugin === plugin);
}
