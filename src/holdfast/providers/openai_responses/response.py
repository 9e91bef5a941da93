"""OpenAI Responses: a body or its events as an answer. Every item of ``output`` is an element of the next ``input``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque
from holdfast.providers.common.json.lenient_json import Place, count_of, fields_of, given, items_of, text_of, usual
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.providers.openai_responses.items import grouped
from holdfast.providers.responses.base import NOTHING, said, with_calls
from holdfast.providers.responses.values import Answer, Stop

_STATUS: dict[str, Stop] = {"completed": "end", "failed": "error", "cancelled": "error"}
_UNFINISHED = frozenset({"queued", "in_progress", "failed", "cancelled"})
_REASONS: dict[str, Stop] = {
    "max_output_tokens": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "max_messages": "pause",
    "steered": "pause",
}
"""``incomplete_details.reason`` (SDK 3.54); after ``max_messages`` and ``steered`` the answer can be gone on with."""


def read(found: Mapping[str, Raw]) -> Answer:
    """Return the answer in the fields of a body, of ``/responses`` or of ``/responses/compact``."""
    items = [raw for raw in items_of(found.get("output")) if bytes(raw).startswith(b"{")]
    message = _message(items)
    native = text_of(fields_of(found.get("incomplete_details")).get("reason")) or text_of(found.get("status"))
    stop = with_calls(_stop(found, native, message), message)
    history = [bytes(raw) for raw in items]
    answer = said(openai_responses.API, found, message, history, (stop, native))
    return replace(answer, complete=False) if text_of(found.get("status")) in _UNFINISHED else answer


def _message(items: list[Raw]) -> Message:
    """Return what the model made, and what the server's tools gave it, as one message."""
    try:
        groups = grouped(items)
    except FormatError:
        return NOTHING
    own = (one for one in groups if one.role in ("assistant", "tool"))
    return Message("assistant", tuple([part for one in own for part in one.parts]))


def _stop(found: Mapping[str, Raw], native: str, message: Message) -> Stop:
    status = text_of(found.get("status"))
    if status == "incomplete":
        return _REASONS.get(native, "unknown")
    stop = _STATUS.get(status, "unknown")
    if text_of(found.get("object")) == "response.compaction" or (stop == "end" and _compacted(message)):
        return "compaction"
    return "refusal" if stop == "end" and _refused(found) else stop


def _compacted(message: Message) -> bool:
    """Return whether a compaction is all that was made."""
    return bool(message.parts) and all(isinstance(one, Opaque) and one.kind == "compaction" for one in message.parts)


def _refused(found: Mapping[str, Raw]) -> bool:
    """Return whether what was said is a refusal and nothing else."""
    items = map(fields_of, items_of(found.get("output")))
    pieces = [fields_of(raw) for item in items for raw in items_of(item.get("content")) if "role" in item]
    return bool(pieces) and all(text_of(piece.get("type")) == "refusal" for piece in pieces)


def _shows(kind: str, found: Mapping[str, Raw]) -> bool:
    """Return whether an event shows something the model made: an item, a piece, or words."""
    return kind.startswith(("response.output_item.", "response.content_part.")) or (
        kind.endswith(".delta") and bytes(found.get("delta", b'""')) not in (b'""', b"null")
    )


# -- events ------------------------------------------------------------------------------------------------------------

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_WHERE: dict[str, tuple[str, str, str]] = {
    "response.output_text.delta": ("content", "output_text", "text"),
    "response.refusal.delta": ("content", "refusal", "refusal"),
    "response.reasoning_text.delta": ("content", "reasoning_text", "text"),
    "response.reasoning_summary_text.delta": ("summary", "summary_text", "text"),
    "response.function_call_arguments.delta": ("", "", "arguments"),
    "response.mcp_call_arguments.delta": ("", "", "arguments"),
    "response.custom_tool_call_input.delta": ("", "", "input"),
    "response.code_interpreter_call_code.delta": ("", "", "code"),
}
"""Where the words of a delta belong: a list of the item, the type of its element, and the field that grows."""


class _Delta(Struct, forbid_unknown_fields=True):
    """The event that most are."""

    type: str
    output_index: Place
    delta: str
    content_index: Place | UnsetType = UNSET
    summary_index: Place = 0
    item_id: str = ""
    sequence_number: int = 0
    logprobs: list[Any] = []
    obfuscation: str = ""


_DELTA = Decoder(_Delta)


class _Item:
    """An item that grows: as it was added, what deltas brought, and as it was when it was done, which wins."""

    __slots__ = ("added", "done", "fields", "pieces")

    def __init__(self) -> None:
        self.added: dict[str, Raw] = {}
        self.done: Raw | None = None
        self.fields: dict[str, list[str]] = {}
        self.pieces: dict[str, dict[int, tuple[str, str, list[str]]]] = {}

    def grow(self, where: tuple[str, str, str], place: int, words: str) -> None:
        """Take the words of a delta."""
        listed, kind, key = where
        if not listed:
            self.fields.setdefault(key, []).append(words)
        else:
            self.pieces.setdefault(listed, {}).setdefault(place, (kind, key, []))[2].append(words)

    def whole(self) -> Any:
        """Return the item as a body has it."""
        if self.done is not None:
            return self.done
        item: dict[str, Any] = dict(self.added) | {key: "".join(words) for key, words in self.fields.items()}
        for listed, pieces in self.pieces.items():
            item[listed] = [_piece(*pieces[place]) for place in sorted(pieces)]
        return item


def _piece(kind: str, key: str, words: list[str]) -> dict[str, Any]:
    told: dict[str, Any] = {"type": kind, key: "".join(words)}
    return told | ({"annotations": []} if kind == "output_text" else {})


class Folding:
    """The events of one answer."""

    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Raw] = {}
        self._items: dict[int, _Item] = {}

    def add(self, name: str, found: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; kinds nobody knows change nothing."""
        kind = text_of(found.get("type")) or name
        if "response" in found:
            self._head |= fields_of(found["response"])
        self.complete = self.complete or kind in _ENDS
        if kind == "response.output_item.added":
            self._at(found).added = fields_of(found.get("item"))
        elif kind == "response.output_item.done" and fields_of(found.get("item")):
            self._at(found).done = found["item"]
        elif (where := _WHERE.get(kind)) is not None:
            place = found.get("content_index", found.get("summary_index"))
            self._at(found).grow(where, count_of(place), text_of(found.get("delta")))
        return _shows(kind, found)

    def go_on(self, data: bytes) -> bool | None:
        """Take a delta of words; return whether it has any, nothing for what is none."""
        told = usual(_DELTA, data)
        where = None if told is None else _WHERE.get(told.type)
        if told is None or where is None:
            return None
        place = told.summary_index if told.content_index is UNSET else told.content_index
        self._items.setdefault(told.output_index, _Item()).grow(where, place, told.delta)
        return bool(told.delta)

    def _at(self, found: Mapping[str, Raw]) -> _Item:
        """Return the item an event is about; without an index, a new one for an item and the last for a delta."""
        fresh = len(self._items) if "item" in found else max(len(self._items) - 1, 0)
        index = count_of(found["output_index"]) if "output_index" in found else fresh
        return self._items.setdefault(index, _Item())

    def body(self) -> dict[str, Any]:
        """Return the fields of the body so far; where the last event does not repeat the output, the items count."""
        told = [raw for raw in items_of(self._head.get("output")) if fields_of(raw)]
        items = [self._items[index].whole() for index in sorted(self._items)]
        output = told if self.complete and len(told) >= len(items) else items or told
        return dict(given(self._head)) | ({"output": output} if self._head or output else {})
