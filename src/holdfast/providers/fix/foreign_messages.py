"""What stands in another API's form, read by that API's reader and written by this one's writer.

A message in which nothing is foreign keeps its bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.messages.sized_message import Slot
from holdfast.providers.common.foreign.foreign_blocks import THINKING, Strange, strange
from holdfast.providers.common.json.lenient_json import items_of
from holdfast.providers.common.json.raw_json import spliced, value, write
from holdfast.providers.convert import carried, unshown
from holdfast.providers.fix.mixed_messages import Read, apart, read
from holdfast.providers.fix.work import Mend, Work
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.recognize import body_fields
from holdfast.providers.registry import Form
from holdfast.providers.request_body import wires
from holdfast.providers.rules import Finding

_RULE = "foreign-form"


def translated(body: bytes, work: Work, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with what stands in another API's form in that of its own."""
    form, found = work.form, body_fields(body)
    raws = items_of(found.get(form.field))
    signs = [_signs(raw, form) for raw in raws]
    if not any(signs) and form.api != "openai-chat":
        return body, []
    reads = [one for raw, told in zip(raws, signs, strict=True) for one in apart(read(raw, form, told))]
    slots, moved = _slots(reads, form)
    if not slots or not (any(signs) or moved):
        return body, []
    wire = [Raw(one) for group in wires(form, slots) for one in group]
    edits = [*_told(signs, form), *_losses(reads, slots, moved, form)]
    return spliced(body, found, {form.field: write(wire)}), edits


def _signs(raw: Raw, form: Form) -> list[Strange]:
    """Return what is strange in a message; nothing of one that cannot be read."""
    try:
        return list(strange(value(raw), form.api))
    except FormatError:
        return []


def _slots(reads: Sequence[Read], form: Form) -> tuple[list[Slot], list[str]]:
    """Return what is to be sent, results tied to their calls, and a note on media that stand behind these now."""
    tied = gemini.linked([one.message for one in reads])
    said = [one.message if one.raw is not None else new for one, new in zip(reads, tied, strict=True)]
    known = {id(message): one for message, one in zip(said, reads, strict=True)}
    said, moved = carried(said, form)
    pairs = [(message, known.get(id(message), Read(message))) for message in said]
    slots = [Slot(message, api=form.api, raw=one.raw, base=one.base) for message, one in pairs]
    return [slot for slot in slots if slot.raw is not None or slot.message.parts], moved


# -- what is told ------------------------------------------------------------------------------------------------------


def _told(signs: Sequence[Sequence[Strange]], form: Form) -> Iterator[Mend]:
    """Yield a line for each kind of thing that is written anew, with the first place of it."""
    found = [(kind, f"$.{form.field}[{at}]{path}") for at, told in enumerate(signs) for path, kind in told]
    first = dict(reversed(found))
    for kind, number in Counter(kind for kind, _ in found if kind.what != THINKING).items():
        yield Mend(_RULE, f"{number} × {kind.told}: written as {form.name} has it", first[kind])


def _losses(reads: Sequence[Read], slots: Sequence[Slot], moved: Sequence[str], form: Form) -> Iterator[Mend]:
    """Yield a line for each kind of thing that has no place in this API."""
    place = f"$.{form.field}"
    yield from (Mend(_RULE, note, place) for note in moved)
    gone = Counter(note for read in reads for note in read.lost)
    said = [slot.message for slot in slots if slot.raw is None]
    for note in (*(f"{number} × {note}" for note, number in gone.items()), *unshown(said, form)):
        yield Mend(_RULE, f"{note}: {form.name} has no other form for it", place)
