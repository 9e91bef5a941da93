"""What a request shows of a branch: its slots with the decisions in force applied, and the digest of that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Part
from holdfast.messages.sized_message import UNBEGUN, Slot
from holdfast.state.codec.packing import pack
from holdfast.state.codec.reading import decoder
from holdfast.state.edits import Edit
from holdfast.state.entries import Compaction

if TYPE_CHECKING:
    from holdfast.state.branch.branch import Branch

ROOT = b"holdfast"
"""What stands before the first message, for the chain of digests."""


def shown(branch: Branch, index: int) -> tuple[Slot, ...]:
    """Return what stands in the projection for slot ``index``: itself, edited, or others in its place."""
    slot = branch.slots[index]
    edits = branch.edits.get(index)
    if edits is None:
        return (slot,)
    for edit in edits:
        if edit.span.part is None:
            return tuple(Slot(put, 0, digest_of(put)) for put in edit.put if isinstance(put, Message))
    return (edited(slot, edits),)


def messages_at(branch: Branch, index: int) -> tuple[Message, ...]:
    """Return the messages of ``shown``, without their sizes and digests."""
    message, edits = branch.messages[index], branch.edits.get(index)
    if edits is None:
        return (message,)
    for edit in edits:
        if edit.span.part is None:
            return tuple(put for put in edit.put if isinstance(put, Message))
    return (Message(message.role, replaced_parts(message, edits)),)


def edited(slot: Slot, edits: Iterable[Edit]) -> Slot:
    """Return ``slot`` with parts replaced; its other parts keep their own bytes."""
    every = list(edits)
    message = Message(slot.message.role, replaced_parts(slot.message, every))
    saves = sum(edit.saves for edit in every if edit.span.part is not None)
    return Slot(message, slot.size - saves, digest_of(message), slot.api, None, slot.raw or slot.base)


def replaced_parts(message: Message, edits: Iterable[Edit]) -> tuple[Part, ...]:
    """Return the parts of ``message`` with those replaced that an edit stands for; of two for one part, the later."""
    parts = list(message.parts)
    for edit in sorted(edits, key=lambda edit: edit.span.part or 0, reverse=True):  # from the back: places hold
        if edit.span.part is not None:
            parts[edit.span.part : edit.span.part + 1] = edit.put  # type: ignore[assignment]
    return tuple(parts)


def project(branch: Branch) -> list[Slot]:
    """Return what a request shows: pinned messages, the summary, the kept slots with the recorded edits applied."""
    out = branch.slots.slice(0, branch.pinned)
    if branch.compaction is not None and branch.compaction.summary is not None:
        out.append(summary_slot(branch.compaction, branch.model, branch.api))
    if not branch.edits:
        out += branch.slots.slice(branch.keep)
        return out
    index, stop = branch.keep, len(branch.slots)
    while index < stop:
        out += shown(branch, index)
        index = slot_after(branch, index)
    return out


class Native(Struct, frozen=True):
    """What a provider made of a head: items for ``model`` on ``api``, and their ``tokens`` where it counted them."""

    api: str = ""
    model: str = ""
    items: list[Raw] = []
    tokens: int = 0


def native_of(compaction: Compaction) -> Native | None:
    """Return what the provider made, where one did and its items can be read."""
    if compaction.native is None:
        return None
    try:
        made = decoder(Native).decode(compaction.native)
    except msgspec.MsgspecError:
        return None
    return made if made.items else None


def summary_slot(compaction: Compaction, model: str = "", api: str = "") -> Slot:
    """Return the slot of a compaction's summary, which must have one, as ``model`` on ``api`` is shown it.

    What a provider made is its bytes on that API, for that model; elsewhere there is the readable twin alone. Where
    ``model`` or ``api`` is not known it may be any.
    """
    summary, made = compaction.summary or Message("user"), _shown_native(compaction, model, api)
    if made is None:
        return Slot(summary, _readable_size(compaction), _summary_digest(compaction))
    raw = Raw(b",".join(bytes(item) for item in made.items))
    return Slot(summary, compaction.size, _summary_digest(compaction), made.api, raw)


def native_size(compaction: Compaction | None, model: str, api: str) -> int:
    """Return ``summary_size`` where a provider compacted, which is not the same for everybody; 0 elsewhere."""
    return summary_size(compaction, model, api) if compaction is not None and compaction.native is not None else 0


def summary_size(compaction: Compaction, model: str = "", api: str = "") -> int:
    """Return the size of what ``summary_slot`` returns; what was told of a compaction without a summary."""
    is_native = compaction.native is not None and _shown_native(compaction, model, api) is not None
    return compaction.size if is_native else _readable_size(compaction)


def held_for(branch: Branch, model: str, api: str) -> int:
    """Return the size of the projection as ``model`` on ``api`` is shown it: ``held`` is as the model asked last is."""
    return branch.held + native_for(branch, model, api) - branch.native


def native_for(branch: Branch, model: str, api: str) -> int:
    """Return ``branch.native`` as ``model`` on ``api`` is shown it; as it is where the compaction is not here."""
    same = branch.compaction is None or (model, api) == (branch.model, branch.api)
    return branch.native if same else native_size(branch.compaction, model, api)


def _shown_native(compaction: Compaction, model: str, api: str) -> Native | None:
    """Return what the provider made, where ``model`` on ``api`` can read it."""
    made = native_of(compaction)
    if made is None or (model and made.model and model != made.model) or (api and api != made.api):
        return None
    return made


LETTERS = 4
"""Characters for one token of a readable twin that nobody counted, as in older logs."""


def _readable_size(compaction: Compaction) -> int:
    """Return the size of the summary itself."""
    if compaction.native is None or compaction.twin or compaction.summary is None:
        return compaction.twin or compaction.size
    return max(compaction.size, len(compaction.summary.text) // LETTERS)


_newest_digest: tuple[Compaction, bytes] | None = None
"""The compaction whose digest was taken last, and that digest: every entry behind a compaction asks for it again, and
to pack a long summary each time took a fifth of what it takes to fold a long log."""


def _summary_digest(compaction: Compaction) -> bytes:
    """Return the digest of what stands for the head: of the summary, and of what a provider made beside it."""
    global _newest_digest  # noqa: PLW0603 -- of an immutable value, so nobody sees a difference
    known = _newest_digest
    if known is not None and known[0] is compaction:
        return known[1]
    if compaction.native is None or compaction.summary is None:
        digest = digest_of(compaction.summary or compaction)
    else:
        digest = digest_of(Compaction(0, compaction.summary, native=compaction.native))
    _newest_digest = compaction, digest
    return digest


def leading(branch: Branch) -> int:
    """Return how many messages a request shows before the first kept one: the pinned ones, and the summary."""
    return branch.pinned + (branch.compaction is not None and branch.compaction.summary is not None)


def patched(slots: list[Slot], repairs: Iterable[Edit]) -> list[Slot]:
    """Return a projection with ``repairs`` applied; their spans count positions in ``slots``."""
    out: list[Slot] = []
    cursor = 0
    for edit in repairs:
        out += slots[cursor : edit.span.start]
        old = slots[edit.span.start : edit.span.stop]
        base = (old[0].raw or old[0].base) if len(old) == len(edit.put) == 1 else None
        size = sum(slot.size for slot in old)
        for message in edit.put:
            if isinstance(message, Message):
                out.append(Slot(message, size, digest_of(message), old[0].api if old else "", None, base))
                size = 0
        cursor = edit.span.stop
    return out + slots[cursor:]


def patched_position(position: int, repairs: Iterable[Edit]) -> int:
    """Return where position ``position`` of a projection stands once ``repairs`` are applied."""
    shift = 0
    for edit in repairs:
        if edit.span.start > position:
            break
        if edit.span.stop > position:
            return max(0, edit.span.start + shift + len(edit.put) - 1)
        shift += len(edit.put) - (edit.span.stop - edit.span.start)
    return position + shift


def origins(branch: Branch) -> list[int]:
    """Return, for each slot of ``project(branch)``, the index of the slot it came from; -1 is the summary."""
    out = [*range(branch.pinned), *[-1] * (leading(branch) - branch.pinned)]
    index, stop = branch.keep, len(branch.slots)
    while index < stop:
        out += [index] * len(shown(branch, index))
        index = slot_after(branch, index)
    return out


def prefix_basis(branch: Branch) -> str:
    """Return the digest of the whole projection with its frame: equal basis, equal prefix."""
    return basis_at(branch, len(branch.slots))


def basis_at(branch: Branch, count: int) -> str:
    """Return the basis of the projection of the first ``count`` slots."""
    return blake2b(branch.frame.digest.encode() + mark_at(branch, count), digest_size=16).hexdigest()


def mark_at(branch: Branch, count: int) -> bytes:
    """Return the digest of the projection of the first ``count`` slots; nothing where there are fewer."""
    if count > len(branch.slots):
        return b""
    return branch.marks[count - 1] if count > branch.keep else base_mark(branch)


# -- digests -----------------------------------------------------------------------------------------------------------


"""The digest of nothing yet: to copy it is quicker than to make it."""


def chained(before: bytes, digest: bytes) -> bytes:
    """Return the digest of what stood before and of one message more."""
    made = UNBEGUN.copy()
    made.update(before + digest)
    return made.digest()


def digest_of(message: Struct) -> bytes:
    """Return the digest of a value's content."""
    return blake2b(pack(message), digest_size=16).digest()


def base_mark(branch: Branch) -> bytes:
    """Return the digest of what stands before the first kept slot."""
    mark = branch.marks[branch.pinned - 1] if branch.pinned else ROOT
    return mark if branch.compaction is None else chained(mark, _summary_digest(branch.compaction))


def shown_slots(branch: Branch, start: int) -> Sequence[int]:
    """Return the slots from ``start`` on for which something is shown: not those that an edit of several took."""
    taken = {
        place
        for index, edits in branch.edits.find_from(branch.keep)
        if any(edit.span.part is None for edit in edits)
        for place in range(index + 1, slot_after(branch, index))
    }
    every = range(start, len(branch.slots))
    return [index for index in every if index not in taken] if taken else every


def slot_after(branch: Branch, index: int) -> int:
    """Return the slot after ``index`` in the projection; an edit may have taken several."""
    for edit in branch.edits.get(index, ()):
        if edit.span.part is None:
            return max(edit.span.stop, index + 1)
    return index + 1
