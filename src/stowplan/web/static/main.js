// Navigation: addresses, keys, and the numbers at the top.

import { address, ask, count, counted, duration, forgetColours, h, zone } from "./dom.js";
import { live } from "./live.js";
import { clusterView } from "./cluster.js";
import { decisionsView } from "./decisions.js";
import { groupsView, groupView } from "./groups.js";
import { nodeView } from "./node.js";
import { podView } from "./pod.js";
import { podsView } from "./pods.js";
import { profilesView } from "./profiles.js";
import { queueView } from "./queue.js";
import { shadowView } from "./shadow.js";
import { whatIfView } from "./whatif.js";

const main = document.getElementById("main");
const status = document.getElementById("status");
const wanted = document.getElementById("wanted");
const KEYS = {
  c: "#/",
  p: "#/pods",
  q: "#/queue",
  g: "#/groups",
  d: "#/decisions",
  w: "#/what-if",
  f: "#/profiles",
};
const isShadow = document.querySelector("nav [data-view=shadow]") !== null;
if (isShadow) KEYS.s = "#/shadow";
let view = null;

function route() {
  const [path, text = ""] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const query = new URLSearchParams(text);
  const [name, ...rest] = path.split("/").map(decoded);
  switch (name) {
    case "":
      return ["cluster", clusterView(query)];
    case "node":
      return ["cluster", nodeView(rest[0] ?? "")];
    case "pods":
      return ["pods", podsView(query)];
    case "profiles":
      return ["profiles", profilesView()];
    case "queue":
      return ["queue", queueView(query)];
    case "groups":
      return ["groups", groupsView(query)];
    case "group":
      return ["groups", groupView(rest[0] ?? "")];
    case "decisions":
      return ["decisions", decisionsView(query)];
    case "pod":
      return ["decisions", podView(rest[0] ?? "", rest[1])];
    case "shadow":
      return ["shadow", shadowView(query)];
    case "what-if":
      return ["what-if", whatIfView(rest, query)];
    default:
      return ["", { title: "Not found", element: h("p", { class: "problem" }, `Page ${path} not found.`) }];
  }
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function go() {
  view?.closed?.();
  const [name, next] = route();
  view = next;
  main.replaceChildren(next.element);
  document.title = `${next.title} – Stowplan`;
  for (const each of document.querySelectorAll("nav a")) {
    if (each.dataset.view === name) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  scrollTo(0, 0);
  if (document.activeElement === document.body) main.focus({ preventScroll: true });
  next.opened?.();
}

function numbers() {
  const { now } = live;
  if (!now) return;
  const waiting = Object.values(now.queue).reduce((sum, each) => sum + each, 0);
  const { median } = live.latency;
  document.getElementById("numbers").textContent = [
    counted(live.fill.length, "node"),
    counted(now.pods, "pod"),
    `${count(waiting)} waiting`,
    `${count(Math.round(live.rate))} decisions/s`,
    median ? `${duration(median)} median` : null,
  ]
    .filter(Boolean)
    .join(" · ");
  say();
}

function say() {
  const { now, problem } = live;
  let text = problem;
  if (!text && now && !now.isSynced)
    text = "The scheduler is starting and has not read the whole cluster yet.";
  else if (!text && now && !now.isLeading && !isShadow)
    text = "This scheduler is on standby; another one is the leader and makes the decisions.";
  if (status.textContent !== text) status.textContent = text;
}

/** Opens the only match; several are listed. A node is found by its whole name, a pod by any part of its. */
async function find() {
  const text = wanted.value.trim();
  if (!text) return;
  if (live.cluster?.nodes.includes(text)) {
    location.hash = address("node", text);
    return;
  }
  const listed = await ask("pods", { search: text }).then(({ pods }) => pods.map((row) => row.pod), () => []);
  const decided = live.decisions.map((row) => row.pod).filter((pod) => pod.includes(text));
  const found = new Set(listed.length ? listed : decided); // a pod may be gone, and its decisions still there
  const isNamed = (pod) => pod === text || pod.endsWith(`/${text}`);
  const [named, ...others] = [...found].filter(isNamed);
  if (named && !others.length) location.hash = address("pod", named);
  else if (found.size === 1) location.hash = address("pod", [...found][0]);
  else if (found.size) location.hash = `#/pods?${new URLSearchParams({ search: text })}`;
  else if (text.includes("/")) location.hash = address("pod", text);
  else location.hash = `#/?${new URLSearchParams({ search: text })}`;
}

const THEMES = { "": "as the system has it", light: "light", dark: "dark" };
const theme = document.getElementById("theme");

function useTheme(name) {
  if (name) document.documentElement.dataset.theme = name;
  else delete document.documentElement.dataset.theme;
  theme.value = name;
  forgetColours();
  dispatchEvent(new Event("resize")); // canvases are drawn again
  live.dispatchEvent(new Event("news"));
}

function storedTheme() {
  try {
    const name = localStorage.getItem("theme") ?? "";
    return name in THEMES ? name : "";
  } catch {
    return ""; // storage is forbidden here
  }
}

theme.addEventListener("change", () => {
  try {
    localStorage.setItem("theme", theme.value);
  } catch {
    // it lasts as long as the page
  }
  useTheme(theme.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => useTheme(theme.value));
document.getElementById("zone").textContent = `Times are in ${zone}; point at one for its date and UTC.`;
addEventListener("hashchange", go);
addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") wanted.focus();
  else if (event.key in KEYS) location.hash = KEYS[event.key];
  else return;
  event.preventDefault();
});
document.getElementById("skip").addEventListener("click", () => main.focus());
document.getElementById("find").addEventListener("submit", (event) => {
  event.preventDefault();
  find();
});
live.addEventListener("news", numbers);
live.addEventListener("problem", say);
useTheme(storedTheme());
go();
live.start();
