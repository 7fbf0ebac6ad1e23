// Elements, text, numbers and requests to the server. Text is always inserted as text, never as markup.

/** An element: `props` are attributes, `on…` functions are listeners; children are elements or text. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

export function link(path, text = path.at(-1)) {
  return h("a", { href: address(...path) }, text);
}

/** `address("pod", "shop/web")` is #/pod/shop%2Fweb */
export function address(...path) {
  return "#/" + path.map(encodeURIComponent).join("/");
}

export function podLink(key) {
  return link(["pod", key], key);
}

export function nodeLink(name) {
  return link(["node", name], name);
}

/** Calls an endpoint of the server; an error response is thrown with its message. */
export async function ask(endpoint, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(given).toString();
  const response = await fetch(`api/${endpoint}${text ? `?${text}` : ""}`, options);
  let answer;
  try {
    answer = await response.json();
  } catch {
    answer = { message: `the server answered with status ${response.status}` };
  }
  if (!response.ok) {
    const error = new Error(answer.message || `status ${response.status}`);
    error.answer = answer;
    throw error;
  }
  return answer;
}

const whole = new Intl.NumberFormat("en");

export function count(number) {
  return whole.format(number);
}

/** The field that the lists are searched with. */
export function searchField(value, placeholder, oninput) {
  return h("input", { id: "search", type: "search", value, placeholder, spellcheck: "false", oninput });
}

export function counted(number, what) {
  return `${count(number)} ${what}${number === 1 ? "" : "s"}`;
}

export function percent(part) {
  return `${Math.round(part * 100)}%`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}

const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const exact = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

/** A time in the zone of the browser: today without the date. Its hint has the date, the zone, and UTC. */
export function time(seconds) {
  const then = new Date(seconds * 1000);
  const isToday = then.toDateString() === new Date().toDateString();
  const hint = `${exact.format(then)} (${then.toISOString()})`;
  return h("time", { datetime: then.toISOString(), title: hint }, (isToday ? clock : day).format(then));
}

export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

export function ago(seconds) {
  return seconds ? duration(Math.max(0, Date.now() / 1000 - seconds)) : "–";
}

/** Calls `update` when a view opens, and again and again until it is closed; rarely while it is hidden. */
export function repeated(update, milliseconds) {
  let timer = 0;
  let isOpen = false;

  async function now() {
    clearTimeout(timer);
    if (!isOpen) return;
    await update();
    clearTimeout(timer); // of another call meanwhile
    if (isOpen) timer = setTimeout(now, document.hidden ? 10 * milliseconds : milliseconds);
  }

  return {
    now,
    opened() {
      isOpen = true;
      now();
    },
    closed() {
      isOpen = false;
      clearTimeout(timer);
    },
  };
}

/** Calls at most once a frame, however often it is called. */
export function eachFrame(draw) {
  let asked = 0;
  return () => {
    if (!asked)
      asked = requestAnimationFrame(() => {
        asked = 0;
        draw();
      });
  };
}

const probe = h("span", { hidden: true });
let colours = new Map();

/** A colour of the style sheet in the theme that is used, for canvases. */
export function colour(name) {
  if (!colours.has(name)) {
    document.body.append(probe);
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

export function forgetColours() {
  colours = new Map();
}

/** A table of facts: `rows` are arrays of text or elements, the first of which names the row. */
export function facts(titles, rows, numbers = []) {
  const kind = (place) => (numbers.includes(place) ? "number" : null);
  return h(
    "table",
    { class: "facts" },
    h("thead", {}, h("tr", {}, titles.map((title, place) => h("th", { scope: "col", class: kind(place) }, title)))),
    h(
      "tbody",
      {},
      rows.map(([first, ...others]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, first),
          others.map((each, place) => h("td", { "data-title": titles[place + 1], class: kind(place + 1) }, each)),
        ),
      ),
    ),
  );
}

/** What the scheduler keeps of an object, asked for when it is opened. */
export function yamlOf(kind, name) {
  const text = h("pre", { class: "yaml", tabindex: "0", "aria-label": `YAML of ${kind} ${name}` }, "Asking…");
  const load = async () => {
    try {
      const found = await ask("object", { kind, name });
      text.textContent = found.yaml + (found.isCut ? "…" : "");
    } catch (error) {
      text.textContent = error.message;
    }
  };
  return h(
    "details",
    { ontoggle: (event) => event.target.open && load() },
    h("summary", {}, "YAML, as the scheduler keeps it"),
    text,
  );
}

export const collator = new Intl.Collator("en", { numeric: true });

/** A canvas of this size in the page's pixels, sharp on every screen. */
export function sized(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}
