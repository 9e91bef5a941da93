"use strict";
// A link to a message or a request opens it.
function openTarget() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const closed = target && target.querySelector("details:not([open])");
  if (closed) closed.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
