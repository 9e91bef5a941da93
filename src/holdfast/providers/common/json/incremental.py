"""A body that grew out of one that is known: what both begin with is not read again.

A client sends the whole conversation each time, and most of it in the bytes of last time. What stands in those bytes
is what it was, so only the rest is opened: as a body of its own, with nothing but the new messages in it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.json.raw_json import spans
from holdfast.providers.recognize import body_fields
from holdfast.providers.registry import Form, form_of
from holdfast.providers.request_body import Lens, lens_of, measured, slots_of

_GAP = re.compile(rb"[\s,]*")
_NEXT = b",{"
"""What stands between messages in bodies without white space, as most clients write them, and how the next begins."""


class Known(Struct, frozen=True):
    """An opened body, and where its messages stand in it."""

    lens: Lens
    start: int
    """Where the list of messages begins."""
    ends: tuple[int, ...]
    """Where each message ends."""


def known(lens: Lens, before: Known | None = None, same: int = 0) -> Known | None:
    """Return ``lens`` with the places of its messages; the first ``same`` are those of ``before``.

    Nothing for a body whose messages are no list.
    """
    start = _start(lens) if before is None else before.start
    if start is None:
        return None
    ends, new = before.ends[:same] if before is not None else (), list[int]()
    position = ends[-1] if ends else start + 1
    for slot in lens.slots[len(ends) :]:
        position = _after(lens.body, position) + len(slot.raw or b"")
        new.append(position)
    return Known(lens, start, ends + tuple(new))


def grown(body: bytes, api: str, before: Known) -> tuple[Lens, int] | None:
    """Return the lens of ``body``, measured, and how many of its slots are those of ``before``; nothing where none is.

    The lens is the one that ``open_body`` gives. Raises as that does.
    """
    form, old = form_of(api), before.lens
    if old.api != api:
        return None
    is_longer = bool(before.ends) and body.startswith(memoryview(old.body)[: before.ends[-1]])
    same = len(before.ends) if is_longer else bisect_right(before.ends, shared(body, old.body))
    same = _alone(form, old.slots, same)
    if not same:
        return None
    cut = _after(body, before.ends[same - 1])
    rest = body[: before.start + 1] + body[cut:]
    found = body_fields(rest)
    listed = found.get(form.field)
    size = 0 if listed is None else memoryview(listed).nbytes
    if listed is None or rest[before.start : before.start + size] != bytes(listed):
        return None  # the field stands there twice
    is_framed = all(found.get(name) == old.fields.get(name) for name in form.frame)
    new = slots_of(form, Raw(bytes(listed)))  # read from a list of their own: none holds on to the body around it
    whole = Raw(memoryview(body)[before.start : cut + size - 1])
    tail = lens_of(form, body, {**found, form.field: whole}, new)
    tail = measured(replace(tail, told=old.told if is_framed else None))
    return replace(tail, slots=old.slots[:same] + tail.slots), same


def _start(lens: Lens) -> int | None:
    """Return where the list of messages begins; nothing where they are no list."""
    try:
        start = spans(lens.body, lens.fields)[form_of(lens.api).field][0]
    except (FormatError, KeyError):
        return None
    return start if lens.body.startswith(b"[", start) else None


def shared(one: bytes, other: bytes) -> int:
    """Return how many bytes both begin with."""
    view, most, at = memoryview(other), min(len(one), len(other)), 0
    step = 1 << most.bit_length()
    while at < most and step:
        end = min(at + step, most)
        if one.startswith(view[at:end], at):
            at = end
        else:
            step //= 2
    return at


def _after(body: bytes, position: int) -> int:
    """Return where the next message begins, or the list ends."""
    if body.startswith(_NEXT, position):
        return position + 1
    found = _GAP.match(body, position)
    return position if found is None else found.end()


def _alone(form: Form, slots: Sequence[Slot], count: int) -> int:
    """Return how many of the first ``count`` messages say the same whatever follows them.

    Elements may join the message before them, and results are tied to calls by what stands between.
    """
    if form.groups is not None:
        count -= 1
    if form.linked is not None:
        while 0 < count < len(slots) and slots[count].message.role != "assistant":
            count -= 1
        if count == len(slots):
            count = next((at for at in reversed(range(count)) if slots[at].message.role == "assistant"), 0)
    return max(count, 0)
