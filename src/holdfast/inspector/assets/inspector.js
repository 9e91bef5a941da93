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
  if (!response.ok) return;
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  const atEnd = innerHeight + scrollY > document.body.scrollHeight - 80;
  document.querySelector("main").replaceChildren(...page.querySelector("main").childNodes);
  if (atEnd && scrollY > 0) scrollTo(0, document.body.scrollHeight);
}
// What takes longer than a page should is filled in.
const incomplete = document.querySelector("[data-complete]");
if (incomplete) showInstead(incomplete.dataset.complete);
// A session that is running: whenever it changes, what is shown is loaded again.
const followed = document.querySelector("[data-changes]");
if (followed && window.EventSource) {
  const changes = new EventSource(followed.dataset.changes);
  changes.addEventListener("changed", () => showInstead(location.href));
  addEventListener("pagehide", () => changes.close());
}
