"""The lens: a request body as slots, and slots as a request body, losing nothing in between.

What no edit touched keeps its bytes: the fields beside ``messages``, every slot with bytes of its own, and inside an
edited message every other part. Without an edit the very body object comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError, Unrecognised
from holdfast.model.entries import Frame
from holdfast.model.parts import Text
from holdfast.model.plan import Options
from holdfast.model.slots import Slot
from holdfast.view.tokens import count_bytes, measure
from holdfast.wire import anthropic, breakpoints, openai_chat
from holdfast.wire.foreign import native
from holdfast.wire.recognise import APIS, body_fields, recognise, spans
from holdfast.wire.splice import fields, read, write

_MESSAGES = Decoder(list[Raw])
_FRAME_FIELDS = {"anthropic": ("tools", "system"), "openai-chat": ("tools", "functions", "response_format")}
"""What stands before the messages in the prompt, in the order the provider renders it."""
_LIMIT_FIELDS = {"anthropic": ("max_tokens",), "openai-chat": ("max_completion_tokens", "max_tokens")}
"""Where the asked output stands; the first is used when a body has none."""


class Lens(Struct, frozen=True):
    """A request body, opened: ``slots`` are its messages, ``fields`` all its top-level fields as they stand."""

    api: str
    model: str
    body: bytes
    fields: dict[str, Raw]
    slots: tuple[Slot, ...]
    frame: Frame
    asked_output: int | None = None
    """The most output tokens the caller asked for."""


def open_body(body: bytes, api: str | None = None) -> Lens:
    """Return the lens of a request body; the API is told from its keys when it is not given.

    Raises ``Unrecognised`` for a body of another API and ``FormatError`` for one that does not decode.
    """
    found = body_fields(body)
    api = recognise(found) if api is None else _checked(api)
    raws = read(_MESSAGES, found.get("messages", Raw(b"[]")), "$.messages")
    slots = tuple([_slot(api, raw, index) for index, raw in enumerate(raws)])
    asked = next((n for n in (_number(found.get(key)) for key in _LIMIT_FIELDS[api]) if n is not None), None)
    return Lens(api, _text(found.get("model")), body, found, slots, frame_of(api, found), asked)


def render(lens: Lens, slots: Sequence[Slot], options: Options = Options()) -> bytes:
    """Return the request body that shows ``slots`` in place of the lens's own.

    The same body object comes back when they are its own and ``options`` change nothing. ``options.markers`` are
    positions in ``slots``; where four breakpoints stand already, the newest positions go first.
    """
    own = _same(slots, lens.slots)
    if own and options == Options():
        return lens.body
    wires = [_wire(lens.api, slot) for slot in slots]
    changed = _limited(lens, options)
    if lens.api == "anthropic" and (options.markers or options.frame_marker):
        changed |= _mark(lens, wires, options)
    flat = [wire for group in wires for wire in group]
    if own and not changed and all(bytes(slot.raw or b"") == wire for slot, wire in zip(slots, flat, strict=False)):
        return lens.body
    return _spliced(lens, changed | {"messages": _joined(lens, flat)})


def body(
    api: str,
    model: str,
    slots: Sequence[Slot],
    *,
    frame_fields: Mapping[str, Any] = MappingProxyType({}),
    options: Options = Options(),
) -> bytes:
    """Return a request body made from ``slots`` without one to start from; ``frame_fields`` are its other fields."""
    lead = _leading_system(slots) if api == "anthropic" and "system" not in frame_fields else 0
    system = [{"type": "text", "text": slot.message.text} for slot in slots[:lead] if slot.message.text.strip()]
    fields_ = {"system": system, **frame_fields} if system else frame_fields
    moved = replace(options, markers=tuple(place - lead for place in options.markers if place >= lead))
    seed = write({"model": model, **fields_, "messages": []})
    return render(open_body(seed, api), slots[lead:], moved)


def _leading_system(slots: Sequence[Slot]) -> int:
    """Return how many system messages with words alone stand first: this API has a field of its own for them."""
    for index, slot in enumerate(slots):
        if slot.message.role != "system" or any(not isinstance(part, Text) for part in slot.message.parts):
            return index
    return len(slots)


# -- reading -----------------------------------------------------------------------------------------------------------


def _checked(api: str) -> str:
    if api not in APIS:
        raise Unrecognised(f"no module speaks {api!r}; the APIs are {', '.join(APIS)}")
    return api


def _slot(api: str, raw: Raw, index: int) -> Slot:
    decode = anthropic.decode if api == "anthropic" else openai_chat.decode
    try:
        message = decode(raw)
    except FormatError as error:
        raise FormatError(f"$.messages[{index}]: {error}") from None
    return replace(measure(message), api=api, raw=raw)


def _number(raw: Raw | None) -> int | None:
    text = b"" if raw is None else bytes(raw)
    return int(text) if text.isdigit() and len(text) < 16 else None


def _text(raw: Raw | None) -> str:
    data = b"" if raw is None else bytes(raw)
    return str(msgspec.json.decode(data)) if data.startswith(b'"') else ""


def frame_of(api: str, found: Mapping[str, Raw]) -> Frame:
    """Return digest and estimated tokens of what stands before the messages, cache breakpoints aside."""
    pieces = [(key, _unmarked(found[key])) for key in _FRAME_FIELDS[api] if key in found]
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
    return len(slots) == len(own) and all(
        a is b or (a.raw is not None and a.api == b.api and a.raw == b.raw) for a, b in zip(slots, own, strict=True)
    )


def _wire(api: str, slot: Slot) -> list[bytes]:
    """Return the wire messages of a slot: its own bytes, or its value written anew."""
    if slot.raw is not None and slot.api == api:
        return [bytes(slot.raw)]
    encode = anthropic.encode if api == "anthropic" else openai_chat.encode
    if slot.api in ("", api):
        return encode(slot.message, slot.base)
    message = native(slot.message, api)
    return encode(message) if message.parts else []


def _limited(lens: Lens, options: Options) -> dict[str, bytes]:
    """Return the field that holds the most output tokens, if options set another number."""
    if options.max_tokens is None or options.max_tokens == lens.asked_output:
        return {}
    names = _LIMIT_FIELDS[lens.api]
    name = next((name for name in names if name in lens.fields), names[0])
    return {name: str(options.max_tokens).encode()}


def _mark(lens: Lens, wires: list[list[bytes]], options: Options) -> dict[str, bytes]:
    """Set breakpoints in ``wires``; return the fields of the frame that got one.

    The newest message goes first, then the frame, then older messages, as long as fewer than four stand.
    """
    standing = [breakpoints.in_message(wire) for group in wires for wire in group]
    before = [life for key in ("tools", "system") for life in breakpoints.standing(lens.fields.get(key))]
    automatic = lens.fields.get("cache_control")
    used = len(before) + sum(map(len, standing)) + (automatic is not None and bytes(automatic) != b"null")
    positions = sorted({p for p in options.markers if 0 <= p < len(wires) and wires[p]}, reverse=True)
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
        wires[position][-1] = new
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


def _joined(lens: Lens, wires: Sequence[bytes]) -> bytes:
    """Return the ``messages`` list, spaced as the body spaces its own."""
    old = bytes(lens.fields.get("messages", Raw(b"[]")))
    raws = [slot.raw for slot in lens.slots if slot.raw is not None]
    if not raws or not wires:
        return b"[" + b",".join(wires) + b"]"
    start = old.index(b"{") if old.find(b"{") >= 0 else 1
    end = start + memoryview(raws[0]).nbytes
    between = old[end : old.index(b"{", end)] if len(raws) > 1 else b","
    return old[:start] + between.join(wires) + old[len(old.rstrip(b"]\r\n\t ")) :]


def _spliced(lens: Lens, changed: Mapping[str, bytes]) -> bytes:
    """Return the body with some fields replaced in place and new ones put at its end."""
    places = spans(lens.body, lens.fields)
    out: list[bytes] = []
    position = 0
    for key, (start, end) in places.items():
        if key in changed:
            out += [lens.body[position:start], changed[key]]
            position = end
    tail = lens.body[position:]
    new = [write(key) + b":" + value for key, value in changed.items() if key not in places]
    if new:
        close = tail.rindex(b"}")
        comma = b"," if places else b""
        tail = tail[:close] + comma + b",".join(new) + tail[close:]
    return b"".join([*out, tail])
