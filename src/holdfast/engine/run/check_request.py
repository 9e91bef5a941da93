"""Judging a request before it goes out: whole, or where it grew from one that was judged, by what is new in it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.upstream import Sent
from holdfast.errors import InvalidRequest
from holdfast.messages.message import Message
from holdfast.messages.sized_message import Slot
from holdfast.providers.fix import mend
from holdfast.providers.registry import form_of
from holdfast.providers.request_body import Lens, render
from holdfast.providers.rules import Finding, validate

_FURTHEST = 64
"""[H] Messages that are looked back on for the calls of the last results: one answer makes no more."""
_BEFORE = Slot(Message.of("user", "(what was judged before)"))
"""Stands for all of it: no conversation begins with an answer."""

_OF_HEADERS = frozenset({"anthropic.binding-beta", "anthropic.compaction-beta"})
"""Rules about headers that the upstream sends, a proxy's client or an SDK, and that are not known here."""


class Judged(Struct, frozen=True):
    """A request with nothing wrong in it: its body, where its last message stands there, and how many it shows."""

    model: str
    body: bytes
    start: int
    stop: int
    messages: int


def judged(sent: Sent, slots: Sequence[Slot]) -> Judged | None:
    """Return ``sent``, which shows ``slots`` and breaks no rule, for later requests to go on from.

    Nothing where its last message is not there as it came.
    """
    raw = slots[-1].raw if slots else None
    start = -1 if raw is None else sent.body.rfind(memoryview(raw))
    return None if raw is None or start < 0 else Judged(sent.model, sent.body, start, start + len(raw), len(slots))


def is_judged(sent: Sent, slots: Sequence[Slot], own: Lens, before: Judged | None) -> bool:
    """Return whether nothing in ``sent`` needs to be judged but what its client said since, and that breaks no rule.

    It is what was judged up to the last message there, and from that one on what ``own``, its client's body, says.
    """
    if before is None or before.model != sent.model or before.messages > len(slots):
        return False
    if not _grew(sent.body, before, own.body):
        return False
    new = _from_calls(slots, before.messages - 1)
    if new is None:
        return False
    shown = new if new and new[0].message.role == "user" else [_BEFORE, *new]
    return not _broken(replace(sent, body=render(own, shown)))


def checked(sent: Sent, *, hook: str = "") -> tuple[Sent, str]:
    """Return ``sent`` as its API takes it, and the rule that its conversation broke, where it had to be mended for it.

    What a server said may break the rules that its own API has for what is said to it. ``InvalidRequest`` says what is
    wrong with a request that is not mended so, and where; one whose messages a ``hook`` made never is.
    """
    wrong = _broken(sent)
    if not wrong:
        return sent, ""
    if not hook and all(_is_said(found, sent) for found in wrong):
        mended = replace(sent, body=mend(sent.body, sent.api, model=sent.model).body)
        if not _broken(mended):
            return mended, wrong[0].rule
    first, more = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    who = f"what the hook {hook} returned" if hook and _is_said(first, sent) else "the request"
    text = f"{first.path}: {first.message}{more}; run `holdfast lint` on the request, or send it with check=False"
    raise InvalidRequest(f"{who} breaks the rule {first.rule!r} of {sent.api}: {text}")


def _is_said(found: Finding, sent: Sent) -> bool:
    """Return whether ``found`` is about the conversation, and not about the fields beside it."""
    return found.path.startswith(f"$.{form_of(sent.api).field}")


def _grew(body: bytes, before: Judged, own: bytes) -> bool:
    """Return whether ``body`` begins like ``before``, its last message too, and from that one on ends like ``own``."""
    known, new = memoryview(before.body)[: before.stop], memoryview(body)[before.start :]
    return body.startswith(known) and own.endswith(new)


def _from_calls(slots: Sequence[Slot], last: int) -> Sequence[Slot] | None:
    """Return ``slots`` from ``last`` on, and before it as far as their results have their calls; nothing if too far."""
    asked = {result.call_id for slot in slots[last + 1 :] for result in slot.message.results}
    asked -= {call.id for slot in slots[last + 1 :] for call in slot.message.calls}
    for start in range(last, max(-1, last - _FURTHEST), -1):
        message = slots[start].message
        asked |= {result.call_id for result in message.results}
        asked -= {call.id for call in message.calls}
        if not asked:
            return slots[start:]
    return None


def _broken(sent: Sent) -> list[Finding]:
    """Return what is wrong with the body of a request."""
    found = validate(sent.body, sent.api, model=sent.model)
    return [one for one in found if one.level == "error" and one.rule not in _OF_HEADERS]
