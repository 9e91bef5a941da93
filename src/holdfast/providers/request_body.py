"""The lens: a request body as slots, and slots as a request body, losing nothing in between.

What no edit touched keeps its bytes: the fields beside the messages, every slot with bytes of its own, and inside an
edited message every other part. Without an edit the very body object comes back. Opening a body reads it and nothing
more; ``measured`` counts its tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.equality import is_beside
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text, Thinking
from holdfast.messages.size.tokens import count_bytes, measure, measures_of
from holdfast.messages.sized_message import Slot
from holdfast.messages.strip_foreign import native
from holdfast.providers.anthropic import cache_control as breakpoints
from holdfast.providers.common.foreign.transcode import speaking
from holdfast.providers.common.json.raw_json import Bytes, fields, read, spliced, write
from holdfast.providers.recognize import body_fields, recognise
from holdfast.providers.registry import FORMS, Form, Group, Path, form_of
from holdfast.state.entries import Frame
from holdfast.state.plan import Options
from holdfast.state.sequence import common

_MESSAGES = Decoder(list[Raw])
_GAP = re.compile(rb"[\s,\[]*")


class Lens(Struct, frozen=True):
    """A request body, opened: ``slots`` are its messages; ``fields`` all its top-level fields."""

    api: str
    model: str
    body: bytes
    fields: dict[str, Raw]
    slots: tuple[Slot, ...]
    asked_output: int | None = None
    """The most output tokens the caller asked for."""
    told: Frame | None = None
    """The frame, where it was measured."""

    @property
    def frame(self) -> Frame:
        """Digest and estimated tokens of what stands before the messages, cache breakpoints aside."""
        return frame_of(self.api, self.fields) if self.told is None else self.told

    @property
    def least_output(self) -> int:
        """The least that an answer may be limited to: more than its model may think in, where the API is told that."""
        thought = _number(_at(self.fields, ("thinking", "budget_tokens")))
        return min(thought + 1, self.asked_output or thought + 1) if thought else 0

    @property
    def streams(self) -> bool:
        """Whether the body asks for events; where the address says that (Gemini), no body does."""
        return bytes(self.fields.get("stream", b"")) == b"true"

    @property
    def decode(self) -> Callable[[bytes], Message] | None:
        """What made each message of its own bytes; nothing where others had a say."""
        form = FORMS[self.api]
        return form.decode if form.groups is None and form.linked is None else None


def whole_frame(lens: Lens) -> Frame:
    """Return digest and tokens of all that a body holds, where other messages go behind its own."""
    frame = lens.frame
    if not lens.slots:
        return frame
    said = [measure(slot.message) for slot in lens.slots]
    digest = blake2b(b"\x00".join([frame.digest.encode(), *(slot.digest for slot in said)]), digest_size=16).hexdigest()
    return Frame(digest, frame.tokens + sum(slot.size for slot in said))


def open_body(body: bytes, api: str | None = None) -> Lens:
    """Return the lens of a request body; the API is told from its keys when it is not given.

    Raises ``Unrecognised`` for a body of another API and ``FormatError`` for one that does not decode.
    """
    found = body_fields(body)
    form = form_of(recognise(found) if api is None else api)
    return lens_of(form, body, found, slots_of(form, found.get(form.field)))


def lens_of(form: Form, body: bytes, found: dict[str, Raw], slots: tuple[Slot, ...]) -> Lens:
    """Return the lens of a body that has these fields, and among them these messages."""
    return Lens(form.api, _text(found.get("model")), body, found, slots, _asked(form, found))


def slots_of(form: Form, listed: Raw | None) -> tuple[Slot, ...]:
    """Return the messages of a list; ``FormatError`` for one that does not decode."""
    messages, raws = _messages(form, listed)
    if form.linked is not None:
        messages = form.linked(messages)
    return tuple([Slot(message, 0, b"", form.api, raw) for message, raw in zip(messages, raws, strict=True)])


def measured(lens: Lens) -> Lens:
    """Return ``lens`` with the size and the digest of every slot, and of its frame."""
    pairs = zip(lens.slots, measures_of([slot.message for slot in lens.slots]), strict=True)
    slots = [Slot(slot.message, size, digest, slot.api, slot.raw) for slot, (size, digest) in pairs]
    return replace(lens, slots=tuple(slots), told=lens.frame)


def render(lens: Lens, slots: Sequence[Slot], options: Options = Options()) -> bytes:
    """Return the request body that shows ``slots`` in place of the lens's own.

    The same body object comes back when they are its own and ``options`` change nothing. ``options.markers`` are
    positions in ``slots``; where there is no room for all beside those that stand, the first ones go first. Of those
    that other slots than the lens's own bring along, the newest stay that there is room for.
    """
    return _rendered(lens, slots, options)


def _rendered(lens: Lens, slots: Sequence[Slot], options: Options, bare: int | None = None) -> bytes:
    """Return the body that shows ``slots``, which bring no breakpoints along from the one at ``bare`` on."""
    own = _same(slots, lens.slots)
    if own and options == Options():
        return lens.body
    form = FORMS[lens.api]
    changed = _limited(lens, options)
    if own and not (form.markers and (options.markers or options.frame_marker)):
        return spliced(lens.body, lens.fields, changed) if changed else lens.body
    shown = wires(form, slots)
    if form.markers and not own:
        most = breakpoints.MOST - len(breakpoints.in_frame(lens.fields)) if bare is None else 0
        shown[bare or 0 :] = breakpoints.newest(shown[bare or 0 :], most)
    if form.markers and (options.markers or options.frame_marker):
        changed |= _mark(lens, shown, options)
        if own and not changed and all(wire == bytes(slot.raw or b"") for slot, wire in _pairs(slots, shown)):
            return lens.body
    flat = [wire for group in shown for wire in group]
    return spliced(lens.body, lens.fields, {**changed, form.field: _joined(form, lens, flat)})


def _pairs(slots: Sequence[Slot], shown: Sequence[Sequence[Bytes]]) -> Iterator[tuple[Slot, bytes]]:
    """Yield each slot with what is shown of it."""
    for slot, group in zip(slots, shown, strict=True):
        yield slot, b",".join(group)


def body(
    api: str,
    model: str,
    slots: Sequence[Slot],
    *,
    frame_fields: Mapping[str, Any] = MappingProxyType({}),
    options: Options = Options(),
) -> bytes:
    """Return a request body made from ``slots`` without one to start from; ``frame_fields`` are its other fields.

    Messages among these stand before all others: the system prompt of an API that has no field for it. Breakpoints that
    ``slots`` bring along are those of other requests, and go.
    """
    form = form_of(api)
    lead = _leading_system(form, slots) if form.system and not frame_fields.keys() & set(form.system) else 0
    words = [slot.message.text for slot in slots[:lead] if slot.message.text.strip()]
    fields_ = {**system_field(form, words), **frame_fields}
    first = fields_.pop(form.field, [])
    named = {"model": model} if form.named else {}
    opened = open_body(write({**named, **fields_, form.field: first}), api)
    further = len(opened.slots) - lead
    moved = replace(options, markers=tuple(place + further for place in options.markers if place >= lead))
    return _rendered(opened, [*opened.slots, *slots[lead:]], moved, bare=len(opened.slots))


def system_field(form: Form, words: Sequence[str]) -> dict[str, Any]:
    """Return the field that holds ``words`` as the system prompt; nothing without words, or without such a field."""
    if not words or not form.system:
        return {}
    texts = [{"text": text} for text in words]
    return {form.system[0]: [{"type": "text", **text} for text in texts] if form.markers else {"parts": texts}}


def _leading_system(form: Form, slots: Sequence[Slot]) -> int:
    """Return how many system messages with words alone stand first: this API has a field of its own for them."""
    for index, slot in enumerate(slots):
        message = _speaking(form, slot)
        if message.role != "system" or any(not isinstance(part, Text) for part in message.parts):
            return index
    return len(slots)


# -- reading -----------------------------------------------------------------------------------------------------------


def _messages(form: Form, raw: Raw | None) -> tuple[list[Message], Sequence[Raw]]:
    """Return the messages of the list, and of each the element, or the stretch from its first element to its last."""
    if raw is None:
        return [], []
    if form.text and bytes(memoryview(raw)[:1]) == b'"':
        return [form.decode(raw)], [raw]
    raws = read(_MESSAGES, raw, f"$.{form.field}")
    if form.groups is None:
        return _decoded(form, raws), raws
    groups = form.groups(raws)
    stretches = raws if len(groups) == len(raws) else [*_stretches(bytes(raw), raws, groups)]
    return [group[2] for group in groups], stretches


def _stretches(data: bytes, raws: Sequence[Raw], groups: Sequence[Group]) -> Iterator[Raw]:
    """Yield the bytes of each group of objects, with what stands between them."""
    position = 0
    for start, stop, _ in groups:
        first = data.index(b"{", position)
        position = first + memoryview(raws[start]).nbytes
        if stop == start + 1:
            yield raws[start]
            continue
        for raw in raws[start + 1 : stop]:
            position = data.index(b"{", position) + memoryview(raw).nbytes
        yield Raw(data[first:position])


def _decoded(form: Form, raws: Sequence[Raw]) -> list[Message]:
    decode, found = form.decode, list[Message]()
    try:
        for raw in raws:
            found.append(decode(raw))
    except FormatError as error:
        raise FormatError(f"$.{form.field}[{len(found)}]: {error}") from None
    return found


def _asked(form: Form, found: Mapping[str, Raw]) -> int | None:
    """Return the first limit that a body sets."""
    return next((number for path in form.limits if (number := _number(_at(found, path))) is not None), None)


def _at(found: Mapping[str, Raw], path: Path) -> Raw | None:
    """Return what stands at ``path``, if anything does."""
    raw = found.get(path[0])
    if raw is None or len(path) == 1:
        return raw
    return _at(fields(raw), path[1:]) if bytes(memoryview(raw)[:1]) == b"{" else None


def _number(raw: Raw | None) -> int | None:
    text = b"" if raw is None else bytes(raw)
    return int(text) if text.isdigit() and len(text) < 16 else None


def _text(raw: Raw | None) -> str:
    data = b"" if raw is None else bytes(raw)
    return str(msgspec.json.decode(data)) if data.startswith(b'"') else ""


def frame_of(api: str, found: Mapping[str, Raw]) -> Frame:
    """Return digest and estimated tokens of what stands before the messages, cache breakpoints aside."""
    pieces = [(key, _unmarked(found[key])) for key in FORMS[api].frame if key in found]
    pieces = [(key, data) for key, data in pieces if data not in (b"null", b"[]", b'""')]
    if not pieces:
        return Frame()
    digest = blake2b(b"\x00".join(key.encode() + data for key, data in pieces), digest_size=16).hexdigest()
    return Frame(digest, sum(count_bytes(_shown(data)) for _, data in pieces))


def _unmarked(raw: Raw) -> bytes:
    """Return the bytes of a field without the ``cache_control`` of its blocks."""
    data = bytes(raw)
    if b'"cache_control"' not in data or not data.startswith(b"["):
        return data
    try:
        blocks = [fields(block) for block in _MESSAGES.decode(data)]
    except (FormatError, msgspec.DecodeError):
        return data
    return write([{key: value for key, value in block.items() if key != "cache_control"} for block in blocks])


def _shown(data: bytes) -> bytes:
    """Return JSON as about the text a model sees of it: without the escapes."""
    return data.replace(b"\\n", b"\n").replace(b'\\"', b'"') if b"\\" in data else data


# -- writing -----------------------------------------------------------------------------------------------------------


def _same(slots: Sequence[Slot], own: Sequence[Slot]) -> bool:
    """Whether ``slots`` are the very bytes of ``own``, of which one slot may hold several."""
    first = common(slots, own)
    if len(slots) != len(own):
        rest = iter(own[first:])
        return len(slots) < len(own) and all(_is_next(slot, rest) for slot in slots[first:]) and not [*rest]
    return all(
        a is b or (a.raw is not None and a.api == b.api and a.raw == b.raw)
        for a, b in zip(slots[first:], own[first:], strict=True)
    )


def _is_next(slot: Slot, own: Iterator[Slot]) -> bool:
    """Whether ``slot`` is the bytes of what comes next of ``own``, which is taken."""
    one, told = next(own, None), slot.raw
    if one is slot:
        return True
    if told is None or one is None or one.raw is None or one.api != slot.api:
        return False
    said = one.raw
    while len(said) < len(told) and (one := next(own, None)) is not None and one.raw is not None:
        said = Raw(b"%b,%b" % (said, one.raw))
    return said == told


def wires(form: Form, slots: Sequence[Slot]) -> list[list[Bytes]]:
    """Return the elements of each slot: its own bytes, or its value written anew."""
    messages: Sequence[Message | None] = [None] * len(slots)
    fresh = [slot for slot in slots if slot.raw is None or slot.api != form.api]
    if form.linked is not None and any(slot.message.results for slot in fresh):
        messages = form.linked([_speaking(form, slot) for slot in slots])
    out = [_wire(form, slot, message) for slot, message in zip(slots, messages, strict=True)]
    return out if form.finish is None or not fresh else form.finish(out)


def _wire(form: Form, slot: Slot, message: Message | None) -> list[Bytes]:
    if slot.raw is not None and slot.api == form.api:
        return [slot.raw if form.listed is None else form.listed(slot.raw)]
    message = _speaking(form, slot) if message is None else message
    if slot.api in ("", form.api):
        return [*form.encode(*_as_sent(form, message, slot.base))]
    return [*form.encode(message, None)] if message.parts else []


def _as_sent(form: Form, message: Message, base: Raw | None) -> tuple[Message, Raw | None]:
    """Return ``message`` without what its ``base``, as its client sent that, leaves out of an answer; and the base.

    That is reasoning, and fields beside the content. A base of several messages is none.
    """
    if base is None:
        return message, None
    pieces = [base] if form.groups is not None else read(_MESSAGES, b"[%b]" % base, "the base message")
    if message.role == "assistant" and any(map(_may_be_left_out, message.parts)):
        sent = {bytes(part.raw or b"") for piece in pieces for part in form.decode(piece).parts}
        parts = (part for part in message.parts if not _may_be_left_out(part) or bytes(part.raw or b"") in sent)
        message = Message(message.role, tuple(parts))
    return message, base if len(pieces) == 1 else None


def _may_be_left_out(part: Part) -> bool:
    """Whether clients leave ``part`` out of an answer that they send back, and it came with bytes of its own."""
    return part.raw is not None and (isinstance(part, Thinking) or (isinstance(part, Opaque) and is_beside(part)))


def _speaking(form: Form, slot: Slot) -> Message:
    """Return the message of a slot with nothing of another API's in it."""
    if slot.api == form.api:
        return slot.message
    return native(slot.message, form.api) if slot.api else speaking(slot.message, form.api)


def _limited(lens: Lens, options: Options) -> dict[str, bytes]:
    """Return the field that holds the most output tokens, if options set another number: more than what is thought."""
    if options.max_tokens is None:
        return {}
    most = max(options.max_tokens, lens.least_output)
    if most == lens.asked_output:
        return {}
    paths = FORMS[lens.api].limits
    path = next((path for path in paths if _at(lens.fields, path) is not None), None)
    path = path or next((path for path in paths if path[0] in lens.fields), paths[0])
    number = str(most).encode()
    if len(path) == 1:
        return {path[0]: number}
    raw = lens.fields.get(path[0], Raw(b"{}"))
    outer = bytes(raw) if bytes(raw).startswith(b"{") else b"{}"
    return {path[0]: spliced(outer, fields(outer), {path[1]: number})}


def _mark(lens: Lens, shown: list[list[Bytes]], options: Options) -> dict[str, bytes]:
    """Set breakpoints in ``shown``; return the fields of the frame that got one.

    The first position goes first, then the frame, then the others in turn, as long as fewer than four stand.
    """
    wires = [[bytes(wire) for wire in group] for group in shown]
    standing = [breakpoints.in_message(wire) for group in wires for wire in group]
    automatic = lens.fields.get("cache_control")
    used = len(breakpoints.in_frame(lens.fields)) + sum(map(len, standing))
    positions = [place for place in options.markers if 0 <= place < len(wires) and wires[place]]
    queue: list[int] = [*positions[:1], *([-1] if options.frame_marker else []), *positions[1:]]
    changed: dict[str, bytes] = {}
    hour = len(wires) if automatic is not None and b'"1h"' in bytes(automatic) else _last_hour(wires)
    for position in queue:
        if used >= breakpoints.MOST:
            break
        if position < 0:
            changed = _marked_frame(lens, "1h" if hour >= 0 else "5m")
            used += bool(changed)
            continue
        new = breakpoints.marked(wires[position][-1], "1h" if position < hour else "5m")
        used += new != wires[position][-1]
        wires[position][-1] = shown[position][-1] = new
    return changed


def _last_hour(wires: list[list[bytes]]) -> int:
    """Return the last position whose message carries a one-hour breakpoint, or -1: none before it may be shorter."""
    for position in range(len(wires) - 1, -1, -1):
        if any("1h" in breakpoints.in_message(wire) for wire in wires[position]):
            return position
    return -1


def _marked_frame(lens: Lens, lifetime: str) -> dict[str, bytes]:
    """Return the last part of the frame, system before tools, with a breakpoint; nothing when it has one."""
    for key in ("system", "tools"):
        data = bytes(lens.fields.get(key, Raw(b"")))
        if key == "system" and data.startswith(b'"') and msgspec.json.decode(data).strip():
            data = write([{"type": "text", "text": Raw(data)}])
        if not data.startswith(b"["):
            continue
        blocks = _MESSAGES.decode(data)
        if not blocks:
            continue
        if key == "tools" and "1h" in breakpoints.standing(lens.fields.get("system")):
            lifetime = "1h"
        new = breakpoints.marked_blocks(blocks, lifetime)
        return {} if new is None else {key: write(new)}
    return {}


def _joined(form: Form, lens: Lens, wires: Sequence[Bytes]) -> list[Bytes | memoryview]:
    """Return the list of messages in pieces, spaced as the body spaces its own."""
    old = memoryview(lens.fields.get(form.field, Raw(b"[]")))
    raws = [slot.raw for slot in lens.slots if slot.raw is not None]
    if not raws or not wires or bytes(old[:1]) != b"[":
        return [b"[", *_between(b",", wires), b"]"]
    start = _end(old, 0)
    first = start + memoryview(raws[0]).nbytes
    between = old[first : _end(old, first)] if len(raws) > 1 else b","
    last = old.nbytes - 1
    while old[last - 1] in b" \t\r\n":
        last -= 1
    return [old[:start], *_between(between, wires), old[last:]]


def _end(data: memoryview, position: int) -> int:
    """Return where what stands between two elements ends."""
    found = _GAP.match(data, position)
    return position if found is None else found.end()


def _between(mark: Bytes | memoryview, wires: Sequence[Bytes]) -> Iterator[Bytes | memoryview]:
    for index, wire in enumerate(wires):
        if index:
            yield mark
        yield wire
