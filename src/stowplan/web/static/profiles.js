// The profiles: their plugins with extension points, weights, arguments, durations and errors.

import { ask, count, counted, duration, facts, h, repeated } from "./dom.js";

const REFRESH = 5000;

export function profilesView() {
  const element = h("section", {}, h("h1", {}, "Profiles"), h("p", { class: "empty" }, "Asking…"));
  let before = "";

  async function update() {
    try {
      const found = await ask("profiles");
      const text = JSON.stringify(found);
      if (text === before) return;
      before = text;
      const open = new Set([...element.querySelectorAll("details[open]")].map((each) => each.id));
      element.replaceChildren(...shown(found));
      for (const each of element.querySelectorAll("details")) each.open = open.has(each.id);
    } catch (error) {
      element.replaceChildren(h("h1", {}, "Profiles"), h("p", { class: "problem" }, error.message));
    }
  }

  return { title: "Profiles", element, ...repeated(update, REFRESH) };
}

function* shown(found) {
  yield h("h1", {}, "Profiles");
  const { success = 0, error = 0 } = found.reloads;
  if (success || error)
    yield h(
      "p",
      {},
      `Plugin files were reloaded ${counted(success, "time")}`,
      error ? h("span", { class: "bad" }, `; ${counted(error, "time")} a changed file could not be loaded`) : "",
      ".",
    );
  if (found.extenders.length) yield h("p", {}, `Extenders: ${found.extenders.join(", ")}.`);
  for (const profile of found.profiles) {
    const attempts = Object.entries(profile.attempts)
      .map(([result, number]) => `${count(number)} ${result}`)
      .join(", ");
    yield h("h2", {}, profile.profile);
    yield h("p", { class: "quiet" }, attempts ? `Attempts: ${attempts}.` : "No attempts yet.");
    yield facts(
      ["Plugin", "Extension points", "Weight", "Mean", "Slowest point", "Errors", "Arguments"],
      profile.plugins.map((plugin) => [
        plugin.plugin,
        plugin.points.join(", "),
        plugin.weight === null ? "" : count(plugin.weight),
        plugin.mean === null ? "" : short(plugin.mean),
        plugin.slowest === null ? "" : short(plugin.slowest),
        errors(plugin),
        args(profile.profile, plugin),
      ]),
      [2, 3, 4, 5],
    );
  }
  yield h("p", { class: "quiet" }, "Durations are of one decision in ten.");
}

function short(seconds) {
  return seconds < 0.001 ? `${count(Math.round(seconds * 1e6))} µs` : duration(seconds);
}

function errors(plugin) {
  if (!plugin.errors && !plugin.interruptions) return "0";
  const late = plugin.interruptions ? `, ${counted(plugin.interruptions, "interruption")}` : "";
  return h("span", { class: "bad" }, `${count(plugin.errors)}${late}`);
}

function args(profile, plugin) {
  if (typeof plugin.args === "string") return plugin.args; // says why there is nothing to show
  const set = Object.entries(plugin.args ?? {});
  if (!set.length) return "none";
  const text = JSON.stringify(plugin.args, null, 2);
  return h(
    "details",
    { id: `${profile}/${plugin.plugin}` },
    h("summary", {}, set.map(([name]) => name).join(", ")),
    h("pre", { class: "yaml", tabindex: "0", "aria-label": `Arguments of ${plugin.plugin}` }, text),
  );
}
