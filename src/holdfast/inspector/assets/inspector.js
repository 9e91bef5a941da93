"use strict";
// Keys: "/" searches, "j" and "k" go to the next and the previous page of what is shown.
document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, select, textarea");
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    event.preventDefault();
    document.getElementById("search-words").focus();
  }
  const relation = { j: "next", k: "prev" }[event.key];
  const link = relation && document.querySelector(`main a[rel="${relation}"]`);
  if (link) link.click();
});
// A link to a message opens it.
const target = location.hash && document.getElementById(location.hash.slice(1));
const closed = target && target.querySelector("details:not([open])");
if (closed) {
  closed.open = true;
  target.scrollIntoView();
}
async function showInstead(address) {
  const response = await fetch(address);
  if (!response.ok) return false;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const atEnd = innerHeight + scrollY > document.body.scrollHeight - 80;
  document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
  if (atEnd && scrollY > 0) scrollTo(0, document.body.scrollHeight);
  prepare();
  return true;
}
// What takes longer than a page should is filled in, step by step.
async function fillIn() {
  const incomplete = document.querySelector("main [data-complete]");
  if (incomplete && (await showInstead(incomplete.dataset.complete))) fillIn();
}
// A session that is running: whenever it changes, what is shown is loaded again.
const followed = document.querySelector("[data-changes]");
if (followed && window.EventSource) {
  const changes = new EventSource(followed.dataset.changes);
  changes.addEventListener("changed", async () => (await showInstead(location.href)) && fillIn());
  // What runs for a while: only the bar and its text change, so that a button in use stays.
  changes.addEventListener("progress", (event) => {
    const progress = JSON.parse(event.data);
    const bar = document.querySelector("progress");
    if (bar && progress.share) bar.value = progress.share;
    const text = document.getElementById("progress-text");
    if (text && text.textContent !== progress.text) text.textContent = progress.text;
  });
  addEventListener("pagehide", () => changes.close());
}
// What only works with code is shown by code.
function prepare() {
  for (const element of document.querySelectorAll("main .script, main [data-copy]")) element.hidden = false;
}
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  try {
    const response = await fetch(button.dataset.copy);
    await navigator.clipboard.writeText(await response.text());
    button.textContent = "Copied";
  } catch {
    button.textContent = "Your browser does not let it be copied: download it";
  }
});
// Dragging over the overview zooms into the requests below.
let drag = null;
function findColumn(event) {
  const columns = [...drag.overview.querySelectorAll("a")];
  const { left, width } = drag.overview.getBoundingClientRect();
  const index = Math.floor(((event.clientX - left) / width) * columns.length);
  return Math.min(columns.length - 1, Math.max(0, index));
}
document.addEventListener("pointerdown", (event) => {
  const overview = event.target.closest(".overview[data-zoom]");
  if (!overview || event.button) return;
  drag = { overview };
  drag.start = drag.end = findColumn(event);
});
document.addEventListener("dragstart", (event) => drag && event.preventDefault());
document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  drag.end = findColumn(event);
  if (drag.end === drag.start && !drag.mark) return;
  if (!drag.mark) {
    drag.mark = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    drag.mark.setAttribute("class", "selection");
    drag.mark.setAttribute("height", "116");
    drag.overview.append(drag.mark);
  }
  drag.mark.setAttribute("x", 10 * Math.min(drag.start, drag.end));
  drag.mark.setAttribute("width", 10 * (Math.abs(drag.end - drag.start) + 1));
});
document.addEventListener("pointerup", () => {
  if (drag && drag.mark && drag.end !== drag.start) {
    const columns = drag.overview.querySelectorAll("a");
    const address = new URL(drag.overview.dataset.zoom, location);
    address.searchParams.set("from", columns[Math.min(drag.start, drag.end)].dataset.first);
    address.searchParams.set("to", columns[Math.max(drag.start, drag.end)].dataset.last);
    location.assign(address);
  }
  if (drag && drag.mark) drag.mark.remove();
  drag = null;
});
document.addEventListener("pointercancel", () => {
  if (drag && drag.mark) drag.mark.remove();
  drag = null;
});
prepare();
fillIn();
