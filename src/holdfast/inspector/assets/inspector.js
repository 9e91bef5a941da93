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
