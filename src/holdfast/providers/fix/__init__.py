"""A request made one that its API takes: its form, its history by hygiene, what stands around it by the validator.

A valid request keeps its very bytes. Halves of characters are mended first, for nothing reads a body with one in it.
What is refused is mended in rounds of steps: the list of messages and the system prompt get their form, then tools and
what stands in another API's form, then each message; then hygiene repairs the history, of what is still refused only
that is changed which has one right way to be mended, and a limit of the answer is named where one must be. Two laws
hold for every step: no word of a user or of a system prompt goes with it, and it stays only if in the end fewer rules
are broken than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import FormatError, check_types
from holdfast.providers.common.json import surrogates as halves
from holdfast.providers.common.json.lenient_json import text_of
from holdfast.providers.fix.foreign_messages import translated
from holdfast.providers.fix.function_results import answered
from holdfast.providers.fix.history import repaired
from holdfast.providers.fix.message_list import framed
from holdfast.providers.fix.message_shapes import reshaped
from holdfast.providers.fix.options import mended_around
from holdfast.providers.fix.output_limit import completed
from holdfast.providers.fix.tools import offered
from holdfast.providers.fix.word_guard import heard, lost
from holdfast.providers.fix.work import Mend, Mended, Step, Work, refused
from holdfast.providers.recognize import body_fields, recognise
from holdfast.providers.registry import form_of
from holdfast.providers.rules import Finding
from holdfast.state.dialect import Dialect

__all__ = ["Mend", "Mended", "mend", "readable"]

_FORMING: tuple[Step, ...] = (framed, offered, translated, answered, reshaped)
_REPAIRING: tuple[Step, ...] = (repaired, mended_around, completed)
_ROUNDS = 6
"""Rounds before the rest stays as it is; one is enough unless mending one thing brings another to light."""


def mend(
    body: bytes,
    api: str | None = None,
    *,
    model: str = "",
    dialect: Callable[[str, str], Dialect] | None = None,
    betas: Sequence[str] | None = None,
    whole: bool = False,
) -> Mended:
    """Return ``body`` made valid for its API; the very same object when it is valid already.

    ``model`` is whose rules hold, also where the body names another one; ``dialect`` tells them from API and model;
    ``betas`` are those of the request's headers; a ``whole`` request must name its model and its ``max_tokens`` too.
    Raises ``FormatError`` for what is no JSON object, and ``Unrecognised`` for one of no API.
    """
    check_types(FormatError, body=(body, bytes))
    body, edits = readable(body)
    found = body_fields(body)
    api = api or recognise(found)
    form, own = form_of(api), text_of(found.get("model"))
    known = model or own
    rules = dialect(api, known) if dialect is not None else form.dialect(known)
    work = Work(form, known, tuple(betas) if betas is not None else None, rules, renamed=known != own, whole=whole)
    findings = work.judge(body)
    for _ in range(_ROUNDS):
        errors = refused(findings)
        made = _round(body, work, errors, (*_FORMING, *_REPAIRING)) or _round(body, work, errors, _REPAIRING)
        if made is None:
            break
        body, more = made
        edits = (*edits, *more)
        findings = work.judge(body)
    return Mended(api, body, edits, findings)


def readable(body: bytes) -> tuple[bytes, tuple[Mend, ...]]:
    """Return the body with U+FFFD for halves of characters, and what is told of it; the same object without any."""
    clean = halves.whole(body)
    if clean is body:
        return body, ()
    why = "half of a character is no text: U+FFFD stands in its place"
    return clean, (Mend("characters", why, halves.first(body)),)


def _round(body: bytes, work: Work, errors: list[Finding], steps: Sequence[Step]) -> tuple[bytes, list[Mend]] | None:
    """Return the body after as many steps as leave the fewest rules broken; nothing unless those are fewer."""
    best, least = None, len(errors)
    told: list[Mend] = []
    for step in steps if errors else ():
        new, more = step(body, work, errors)
        if new == body or lost(heard(body, work.form), heard(new, work.form), moved=True):
            continue
        body, told, errors = new, [*told, *more], work.errors(new)
        if len(errors) < least:
            best, least = (body, told), len(errors)
        if not errors:
            break
    return best
