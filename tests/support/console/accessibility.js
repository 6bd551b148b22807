// Faults of a page for people who use a keyboard, a screen reader or weak eyes, as a list of texts.
// The script runs in the page: see accessibility.py.
() => {
  const faults = [];
  const seen = (one) => one.checkVisibility({ visibilityProperty: true });
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);
  const told = (one) => one.outerHTML.replace(/\s+/g, " ").slice(0, 120);
  const expect = (right, fault, one) => right || faults.push(one ? `${fault}: ${told(one)}` : fault);

  // ---- The outline of the page.
  expect(document.documentElement.lang, "the page has no language");
  expect(!document.title.startsWith(" "), "the page has no title");
  expect(all("main").length === 1, "the page has not one main part");
  const levels = all("h1, h2, h3, h4").map((one) => Number(one.tagName[1]));
  expect(levels.filter((level) => level === 1).length === 1, "the page has not one h1");
  levels.forEach((level, at) =>
    expect(level <= (levels[at - 1] ?? 0) + 1, `an h${level} follows an h${levels[at - 1]}`));
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  ids.forEach((id, at) => expect(ids.indexOf(id) === at, `two elements have the id ${id}`));

  // ---- Names.
  const textOf = (id) => document.getElementById(id)?.textContent ?? "";
  const nameOf = (one) => [
    one.getAttribute("aria-label"),
    ...(one.getAttribute("aria-labelledby") ?? "").split(" ").map(textOf),
    ...[...(one.labels ?? [])].map((label) => label.textContent),
    one.matches("a, button, summary") ? one.textContent : "",
    one.getAttribute("title"),
  ].join("").trim();
  all("a[href], button, summary, select, textarea, input:not([type=hidden]), dialog, nav, progress, svg[role], [role=group]")
    .forEach((one) => expect(nameOf(one), "no name", one));
  all("svg:not([role])").forEach((one) => expect(one.ariaHidden === "true", "an image without a role", one));
  all("table").forEach((one) => expect(one.querySelector("th"), "a table without headings", one));
  all("th").forEach((one) => expect(one.scope, "a heading of a table without a scope", one));

  // ---- Contrast: the colour of each text, and what is behind it (WCAG 2.2, level AA).
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => [0, 1, 2].map((at) => top[at] * top[3] + below[at] * (1 - top[3]));
  const light = (colour) => {
    const [red, green, blue] = colour.map((part) =>
      part <= 10.31 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const ground = (one) =>
    one ? over(rgba(getComputedStyle(one).backgroundColor), ground(one.parentElement)) : [255, 255, 255];
  const contrast = (one, colour) => {
    const behind = ground(one);
    const [dark, bright] = [light(over(rgba(colour), behind)), light(behind)].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  };
  const checkContrast = (theme) => {
    const texts = all("body *").filter((one) =>
      one.matches("input, select, textarea")
      || [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
    const found = new Set();
    for (const one of texts) {
      if (one.closest("title, script, :disabled, .unseen, .skip")) continue;
      const style = getComputedStyle(one);
      const px = parseFloat(style.fontSize);
      const isLarge = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700);
      const ratio = contrast(one, one.closest("svg") ? style.fill : style.color);
      const where = `${one.tagName}.${one.className.baseVal ?? one.className}`;
      if (ratio < (isLarge ? 3 : 4.5)) found.add(`${theme}: ${where} has a contrast of ${ratio.toFixed(2)}`);
    }
    faults.push(...found);
  };
  const root = document.documentElement;
  const before = root.dataset.theme;
  for (const theme of ["light", "dark"]) {
    root.dataset.theme = theme;
    checkContrast(theme);
  }
  if (before) root.dataset.theme = before;
  else delete root.dataset.theme;

  return faults;
}
