"""Anthropic Messages: a body or its events as an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from msgspec import Raw, Struct, field
from msgspec.json import Decoder
from msgspec.structs import replace

from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.json.lenient_json import Place, count_of, fields_of, given, items_of, text_of, usual
from holdfast.providers.common.json.raw_json import as_object, write
from holdfast.providers.responses.base import NOTHING, decoded, lookup, said
from holdfast.providers.responses.values import Answer, Stop

STOPS: dict[str, Stop] = {
    "end_turn": "end",
    "tool_use": "tool",
    "max_tokens": "length",
    "model_context_window_exceeded": "window",
    "pause_turn": "pause",
    "compaction": "compaction",
    "refusal": "refusal",
    "stop_sequence": "stop_sequence",
}
"""``stop_reason`` (SDK 2.12)."""


def read(found: Mapping[str, Raw]) -> Answer:
    """Return the answer in the fields of a body."""
    native = text_of(found.get("stop_reason"))
    element = write({"role": "assistant", "content": found["content"]}) if "content" in found else b""
    message = decoded(anthropic.decode, element) if element else NOTHING
    answer = said(anthropic.API, found, message, (element,), (lookup(STOPS, native), native))
    told = found.get("context_management")
    return answer if told is None else replace(answer, cleared=_cleared(fields_of(told)))


def _cleared(told: Mapping[str, Raw]) -> int:
    """Return the tokens that context editing left out of the prompt."""
    edits = map(fields_of, items_of(told.get("applied_edits")))
    return sum(count_of(edit.get("cleared_input_tokens")) for edit in edits)


# -- events ------------------------------------------------------------------------------------------------------------


class _Text(Struct, tag="text_delta", forbid_unknown_fields=True):
    key: ClassVar = "text"
    words: str = field(name="text")


class _Thinking(Struct, tag="thinking_delta", forbid_unknown_fields=True):
    key: ClassVar = "thinking"
    words: str = field(name="thinking")


class _Input(Struct, tag="input_json_delta", forbid_unknown_fields=True):
    key: ClassVar = "partial_json"
    words: str = field(name="partial_json")


class _Delta(Struct, tag="content_block_delta", forbid_unknown_fields=True):
    """The event that most are."""

    index: Place
    delta: _Text | _Thinking | _Input


_DELTA = Decoder(_Delta)


class _Block:
    """A block that grows: its fields as it began, and what deltas added to them."""

    __slots__ = ("fields", "grown", "lists")

    def __init__(self, fields: Mapping[str, Raw]) -> None:
        self.fields = dict(fields)
        self.grown: dict[str, list[str]] = {}
        self.lists: dict[str, list[Raw]] = {}

    def add(self, delta: Mapping[str, Raw]) -> None:
        """Take a delta: words are appended, a citation joins its list, all else stands in for what was there."""
        kind = text_of(delta.get("type"))
        for key, raw in delta.items():
            if key == "type":
                continue
            if key == "citation":
                self.lists.setdefault("citations", []).append(raw)
            elif kind in _WHOLE or not bytes(raw).startswith(b'"'):
                self.fields[key] = raw
            else:
                self.grow(key, text_of(raw))

    def grow(self, key: str, words: str) -> None:
        """Take words that go on."""
        if key not in self.grown:
            self.grown[key] = [text_of(self.fields.get(key))]
        self.grown[key].append(words)

    def whole(self) -> dict[str, Any]:
        """Return the block as a body has it."""
        block: dict[str, Any] = dict(self.fields) | self.lists
        for key, pieces in self.grown.items():
            words = "".join(pieces)
            if key != "partial_json":
                block[key] = words
            elif words.strip():
                block["input"] = as_object(words)
        return block


_WHOLE = frozenset({"signature_delta", "compaction_delta"})
"""Deltas that come once and hold all of it. Every other kind, of tomorrow too, adds words to what was said."""
_WORDS = frozenset({"text", "thinking"})
"""Blocks that say nothing before there are words in them."""
_EMPTY = frozenset({b'""', b"{}", b"[]", b"null"})


class Folding:
    """The events of one answer."""

    def __init__(self) -> None:
        self.complete = False
        self._head: dict[str, Any] = {}
        self._usage: dict[str, Raw] = {}
        self._blocks: dict[int, _Block] = {}

    def add(self, name: str, found: Mapping[str, Raw]) -> bool:
        """Take the fields of one event; kinds nobody knows change nothing.

        What the model said is in a delta with content, or in a block that is no text.
        """
        step = self._STEPS.get(text_of(found.get("type")) or name)
        return step is not None and step(self, found)

    def go_on(self, data: bytes) -> bool | None:
        """Take a delta of words for a block that has begun; return whether it has any, nothing for what is none."""
        told = usual(_DELTA, data)
        block = None if told is None else self._blocks.get(told.index)
        if told is None or block is None:
            return None
        block.grow(told.delta.key, told.delta.words)
        return bool(told.delta.words)

    def body(self) -> dict[str, Any]:
        """Return the fields of the body so far."""
        content = [self._blocks[index].whole() for index in sorted(self._blocks)]
        body = dict(self._head) | ({"content": content} if content or self._head else {})
        return body | ({"usage": self._usage} if self._usage else {})

    def _start(self, found: Mapping[str, Raw]) -> bool:
        message = fields_of(found.get("message"))
        self._usage = fields_of(message.pop("usage", None))
        self._head = message
        return False

    def _block(self, found: Mapping[str, Raw]) -> bool:
        block = fields_of(found.get("content_block"))
        self._blocks[count_of(found.get("index"))] = _Block(block)
        kind = text_of(block.get("type"))
        if kind == "fallback":
            to = fields_of(block.get("to"))
            self._head |= {"model": to["model"]} if "model" in to else {}
        return bool(block) and (kind not in _WORDS or bool(text_of(block.get("text"))))

    def _delta(self, found: Mapping[str, Raw]) -> bool:
        delta, index = fields_of(found.get("delta")), count_of(found.get("index"))
        kind = text_of(delta.get("type")).removesuffix("_delta")
        if index not in self._blocks and kind in ("text", "thinking"):
            self._blocks[index] = _Block({"type": Raw(write(kind))})
        if index in self._blocks:
            self._blocks[index].add(delta)
        return any(bytes(raw) not in _EMPTY for key, raw in delta.items() if key != "type")

    def _message(self, found: Mapping[str, Raw]) -> bool:
        """Take what the end of a message corrects: every field that is there counts in place of the first one."""
        found = given(found)
        self._usage |= given(fields_of(found.get("usage")))
        self._head |= given(fields_of(found.get("delta")))
        self._head |= {key: raw for key, raw in found.items() if key not in ("type", "delta", "usage")}
        return False

    def _stop(self, _found: Mapping[str, Raw]) -> bool:
        self.complete = True
        return False

    _STEPS: ClassVar[Mapping[str, Callable[[Folding, Mapping[str, Raw]], bool]]] = {
        "message_start": _start,
        "content_block_start": _block,
        "content_block_delta": _delta,
        "message_delta": _message,
        "message_stop": _stop,
    }
