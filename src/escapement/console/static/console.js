// The script of all pages: live parts, keys, themes, the time zone, and dragging over a chart.
// The pages work without it, but stand still.
"use strict";

const YEAR_S = 366 * 24 * 3600;

function setCookie(name, value) {
  document.cookie = `${name}=${value}; path=/; max-age=${YEAR_S}; samesite=lax`;
}

// ---- The time zone: pages show times in it. The first page of a browser is loaded again.
(function tellZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || document.cookie.includes(`escapement_zone=${zone}`)) return;
  setCookie("escapement_zone", zone);
  if (document.cookie.includes(`escapement_zone=${zone}`) && document.querySelector("main time, .chart, [type=datetime-local]")) {
    location.reload();
  }
})();

// ---- The theme.
document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  setCookie("escapement_theme", root.dataset.theme);
});

// ---- Live parts: <section data-live="/live/…"> is replaced when it has changed. While the tab is
// hidden, nothing is loaded. While the user works in the part, it stays as it is.
function follow(part) {
  const sign = document.querySelector("[data-live-sign]");
  let source = null;
  let newest = null; // the HTML to show when the user has left the part
  function show() {
    if (newest === null || part.contains(document.activeElement) || part.dataset.busy) return;
    part.innerHTML = newest;
    newest = null;
    window.htmx?.process(part);
    part.dispatchEvent(new CustomEvent("live", { bubbles: true }));
  }
  function open() {
    if (source || document.hidden) return;
    source = new EventSource(part.dataset.live);
    source.addEventListener("part", (event) => {
      sign?.classList.remove("away");
      if (sign) sign.textContent = "";
      newest = event.data;
      show();
    });
    source.addEventListener("trouble", (event) => {
      sign?.classList.add("away");
      if (sign) sign.textContent = event.data;
    });
    source.addEventListener("error", () => sign?.classList.add("away"));
  }
  function close() {
    source?.close();
    source = null;
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open); // also after a step back
  part.addEventListener("focusout", () => setTimeout(show));
  window.addEventListener("pointerup", () => setTimeout(show));
  open();
}
document.querySelectorAll("[data-live]").forEach(follow);

// ---- A form that changes something is sent once, also by a double click.
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  if (form.dataset.sent) event.preventDefault();
  form.dataset.sent = "1";
});
window.addEventListener("pageshow", () => {
  document.querySelectorAll("form[data-sent]").forEach((form) => delete form.dataset.sent);
});

// ---- Keys.
const PLACES = {
  t: "/", f: "/find", s: "/subscriptions", l: "/lateness", c: "/schedules",
  d: "/dead-letters", p: "/produce", b: "/brokers",
};
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea, dialog")) {
    if (event.key === "Escape") event.target.blur();
    // Enter on a checkbox would press the first button of its form.
    if (event.key === "Enter" && event.target.type === "checkbox") event.preventDefault();
    return;
  }
  if (going) {
    going = false;
    if (event.key in PLACES) location.href = PLACES[event.key];
    return;
  }
  const act = {
    "/": () => document.getElementById("search")?.focus(),
    "?": () => document.getElementById("keys")?.showModal(),
    g: () => { going = true; },
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => document.querySelector("tr.current input[type=checkbox]")?.click(),
    Enter: () => openRow(event),
  }[event.key];
  if (!act) return;
  if (event.key !== "Enter") event.preventDefault();
  act();
});

function moveRow(step) {
  const rows = [...document.querySelectorAll("main tbody tr")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("current"));
  const next = rows[Math.min(Math.max(at + step, 0), rows.length - 1)];
  rows[at]?.classList.remove("current");
  next.classList.add("current");
  next.scrollIntoView({ block: "nearest" });
}

function openRow(event) {
  if (document.activeElement !== document.body) return;
  const link = document.querySelector("tr.current a");
  if (link) { event.preventDefault(); link.click(); }
}

// ---- Dragging over the bars of a chart opens the list of what falls due in that range. Each bar is
// a link with data-from and data-until, so a keyboard reaches the same lists.
function dragOver(chart) {
  let first = null;
  const barAt = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest("a[data-from]");
  const chosen = (last) => {
    const bars = [...chart.querySelectorAll("a[data-from]")];
    const [a, b] = [bars.indexOf(first), bars.indexOf(last)].sort((x, y) => x - y);
    return a < 0 ? [] : bars.slice(a, b + 1);
  };
  const mark = (bars) => {
    chart.querySelectorAll("a.chosen").forEach((bar) => bar.classList.remove("chosen"));
    bars.forEach((bar) => bar.classList.add("chosen"));
  };
  const part = chart.closest("[data-live]");
  chart.addEventListener("dragstart", (event) => event.preventDefault());
  chart.addEventListener("pointerdown", (event) => {
    first = event.button === 0 ? barAt(event) : null;
    if (first && part) part.dataset.busy = "1";
  });
  chart.addEventListener("pointermove", (event) => {
    const last = first && barAt(event);
    if (last) mark(chosen(last));
  });
  window.addEventListener("pointerup", (event) => {
    const last = first && barAt(event);
    if (last && last !== first) {
      const bars = chosen(last);
      const url = new URL(bars[0].href.baseVal ?? bars[0].href, location.href);
      url.searchParams.set("until", bars[bars.length - 1].dataset.until);
      location.href = url;
    }
    first = null;
    mark([]);
    if (part) delete part.dataset.busy;
  });
}
function prepare(root) {
  root.querySelectorAll("[data-drag]").forEach(dragOver);
}
prepare(document);

// ---- Selections: <form data-selection> has checkboxes named "id", and one for all of them.
function select(form) {
  const boxes = () => [...form.querySelectorAll("input[name=id]")];
  const all = form.querySelector("[data-all]");
  const sign = form.querySelector("[data-chosen]");
  form.addEventListener("change", (event) => {
    if (event.target === all) boxes().forEach((box) => { box.checked = all.checked; });
    const chosen = boxes().filter((box) => box.checked).length;
    if (all) {
      all.checked = chosen > 0 && chosen === boxes().length;
      all.indeterminate = chosen > 0 && !all.checked;
    }
    if (sign) sign.textContent = chosen ? ` (${chosen})` : "";
  });
}
document.querySelectorAll("form[data-selection]").forEach(select);

// ---- Saved views: filters of the page Find, which the browser keeps by name.
const VIEWS = "escapement_views";
const MOST_VIEWS = 50;

function savedViews() {
  try {
    const found = JSON.parse(localStorage.getItem(VIEWS) ?? "[]");
    return Array.isArray(found) ? found.filter((one) => typeof one?.name === "string" && typeof one?.query === "string") : [];
  } catch {
    return [];
  }
}

function showViews(box) {
  const list = box.querySelector("[data-view-list]");
  list.replaceChildren(...savedViews().map(({ name, query }) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    const remove = document.createElement("button");
    link.href = `/find?${query}`;
    link.textContent = name;
    remove.type = "button";
    remove.className = "quiet";
    remove.textContent = "✕";
    remove.setAttribute("aria-label", `Delete the view ${name}`);
    remove.addEventListener("click", () => keepViews(box, savedViews().filter((one) => one.name !== name)));
    item.append(link, " ", remove);
    return item;
  }));
}

function keepViews(box, views) {
  localStorage.setItem(VIEWS, JSON.stringify(views.slice(-MOST_VIEWS)));
  showViews(box);
}

document.querySelectorAll("[data-views]").forEach((box) => {
  box.hidden = false;
  box.open = savedViews().length > 0;
  showViews(box);
  box.querySelector("[data-view-form]").addEventListener("submit", (event) => {
    event.preventDefault();
    const field = box.querySelector("#view-name");
    const view = { name: field.value.trim(), query: location.search.slice(1) };
    if (!view.name) return;
    keepViews(box, [...savedViews().filter((one) => one.name !== view.name), view]);
    field.value = "";
  });
});
document.addEventListener("live", (event) => prepare(event.target));
