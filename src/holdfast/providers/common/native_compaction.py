"""Compactions that a provider makes itself: how one is asked for, and what comes back, as the log takes it.

Asked for by ``/responses/compact`` or a last input item on Responses, by a field of the body on the Messages API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import ConfigError
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, count, measure
from holdfast.providers.common.json.raw_json import decoded_size, fields, write
from holdfast.providers.common.server_compaction import (
    ANTHROPIC,
    KIND,
    LEAST_THRESHOLD,
    ON_DEMAND,
    RESPONSES,
    Json,
    headers,
)
from holdfast.providers.overflow import ErrorReport, classify
from holdfast.providers.registry import FORMS
from holdfast.providers.responses import Answer
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import PASSING, Compaction
from holdfast.state.target import Target

RULE = "native"
"""Rule of the edits, and trigger of the compaction, by which the log takes over what a provider compacted by itself."""


def can_compact(target: Target) -> bool:
    """Return whether the provider of ``target`` compacts a conversation when it is asked to."""
    return target.api in LEAST_THRESHOLD and target.dialect.compacts


# -- asking ------------------------------------------------------------------------------------------------------------


class Asking(Struct, frozen=True):
    """A request for nothing but a compaction."""

    endpoint: Literal["generate", "compact"]
    body: bytes
    headers: Mapping[str, str] = {}


_ENDPOINT = frozenset(
    {"model", "input", "instructions", "previous_response_id", "prompt_cache_key", "prompt_cache_options",
     "prompt_cache_retention", "service_tier", "image"}
)  # fmt: skip
"""Fields that ``/responses/compact`` takes (SDK 3.54)."""
_SHAPING = frozenset({"context_management", "stop_sequences", "output_format", "stream", KIND})
"""Fields of the Messages API that only shape an answer, and are refused beside a compaction; its own goes with them."""
_STREAMING = frozenset({"stream", "stream_options", "background", "context_management"})
_TRIGGER = {"type": "compaction_trigger"}
_PROMPT = (
    "Summarise this conversation so that the work can go on from the summary alone: the goal, what the user asked for, "
    "what was decided and why, what is done and what is open, and every path, command, name, number and error text "
    "that is still needed, word for word. Above all: {instructions}"
)
"""What is asked where somebody says what counts; on the Messages API this takes the place of the provider's own."""


def asking(api: str, body: bytes, *, instructions: str = "", inside: bool = False) -> Asking:
    """Return the request that asks for a compaction of all messages in ``body``, which is left as it is.

    ``instructions`` say what counts above all. ``inside`` asks by a last input item instead of at the address that
    Responses has for it. ``ConfigError`` for an API without compaction.
    """
    found = fields(body, "the body")
    if api == ANTHROPIC:
        return _on_demand(found, instructions.strip())
    if api != RESPONSES:
        raise ConfigError(f"{api} compacts nothing on demand; let a model write the summary, or make an extract")
    led: Json = {"instructions": _led(found, instructions.strip())} if instructions.strip() else {}
    if inside:
        kept = {key: raw for key, raw in found.items() if key not in _STREAMING}
        return Asking("generate", write({**kept, **led, "input": [*_items(found.get("input")), _TRIGGER]}))
    return Asking("compact", write({**{key: raw for key, raw in found.items() if key in _ENDPOINT}, **led}))


def _on_demand(found: Mapping[str, Raw], instructions: str) -> Asking:
    body: Json = {key: raw for key, raw in found.items() if key not in _SHAPING}
    for key in {"tool_choice", "output_config", "fallbacks"} & body.keys():
        value = _unshaped(key, msgspec.json.decode(body.pop(key)))
        body |= {key: value} if value else {}
    told = {"instructions": _PROMPT.format(instructions=instructions)} if instructions else {}
    return Asking("generate", write({**body, KIND: {"type": "summarize", **told}}), headers({}, [ON_DEMAND]))


def _unshaped(key: str, value: Any) -> Any:
    """Return an option without what only shapes an answer: forced calls, and its format."""
    if key == "fallbacks":
        return [_unformatted(one) for one in value] if isinstance(value, list) else value
    if not isinstance(value, dict):
        return value
    if key == "tool_choice":
        return None if value.get("type") in {"any", "tool"} else value
    return {name: inner for name, inner in value.items() if name != "format"}


def _unformatted(fallback: Any) -> Any:
    held = fallback.get("output_config") if isinstance(fallback, dict) else None
    return fallback | {"output_config": _unshaped("output_config", held)} if held else fallback


def _led(found: Mapping[str, Raw], instructions: str) -> str:
    """Return the request's own instructions with those for the compaction behind them."""
    own = msgspec.json.decode(found["instructions"]) if "instructions" in found else None
    return "\n\n".join([*([own] if isinstance(own, str) and own else []), _PROMPT.format(instructions=instructions)])


def _items(raw: Raw | None) -> list[Any]:
    """Return the input as a list."""
    given = [] if raw is None else msgspec.json.decode(raw, type=str | list[Raw])
    return [{"role": "user", "content": given}] if isinstance(given, str) else list(given)


# -- what comes back ---------------------------------------------------------------------------------------------------


class Made(Struct, frozen=True):
    """A compaction: ``items`` as the next list of messages takes them, and about how many tokens they are there."""

    items: tuple[Raw, ...]
    tokens: int = 0

    def beside(self, api: str, texts: Sequence[str]) -> Made:
        """Return it with ``texts`` behind it, as the user's."""
        if not texts:
            return self
        said = FORMS[api].encode(Message("user", tuple(map(Text, texts))), None)
        return Made((*self.items, *map(Raw, said)), self.tokens + sum(map(count, texts)))

    def native(self, api: str, model: str) -> Raw:
        """Return it as ``Compaction.native``."""
        return Raw(write({"api": api, "model": model, "items": self.items, "tokens": self.tokens}))


class Unmade(Struct, frozen=True):
    """Why there is no compaction: ``outcome`` is a word of the events; the history stays as it is."""

    outcome: str
    why: str
    again: bool = False
    """Whether the same request may succeed a little later."""
    retry_after: float | None = None
    """Seconds after which the provider wants to be asked again, where it said so."""


_NOTHING = "compaction_nothing_to_summarize"
_LATER = "compaction_unavailable"
_CODE = re.compile(rb'"error_code"\s*:\s*"(\w+)"')


def made(api: str, told: Answer) -> Made | Unmade:
    """Return the compaction in ``told``, the answer to a request of ``asking``, or why there is none in it."""
    if told.error is not None:
        return _refused(told.error)
    if told.damaged:
        return Unmade("provider_error", "the compaction came damaged; the history stays as it is", again=True)
    block = _newest(told.message)
    if block is None or block.raw is None:
        return Unmade("summary_rejected", "the provider answered without a compaction; the history stays as it is")
    if not _holds(block):
        return Unmade("summary_rejected", "the provider's compaction is empty: it failed; the history stays as it is")
    if api == ANTHROPIC:
        return Made((_spoken([block.raw]),), max(_written(told), _weight(block)))
    items = tuple(map(Raw, told.history))
    return Made(items, (_written(told) or _weight(block)) + sum(_tokens(raw) for raw in items))


def _refused(error: ErrorReport) -> Unmade:
    verdict = classify(error)
    body = error.body if isinstance(error.body, bytes) else write(error.body)
    code = found[1].decode() if (found := _CODE.search(body)) else ""
    status = f"HTTP {error.status}, " if error.status else ""
    why = f"the provider did not compact ({status}{code or verdict.kind}): {error.words[:_CUT]}"
    if code == _NOTHING:
        return Unmade("nothing_to_compact", why)
    again = code == _LATER or (verdict.kind in PASSING and not code.startswith("compaction_"))
    return Unmade("provider_error", why, again, verdict.retry_after)


_CUT = 300
"""Characters of a provider's words that are repeated."""


def _newest(message: Message) -> Opaque | None:
    blocks = [part for part in message.parts if isinstance(part, Opaque) and part.kind == KIND]
    return blocks[-1] if blocks else None


def _holds(block: Opaque) -> bool:
    """Return whether a block, or item, says anything; null is a compaction that failed."""
    said = _said(block)
    return any(isinstance(said.get(key), str) and said[key] for key in ("content", "encrypted_content"))


def _said(block: Opaque) -> Json:
    return msgspec.json.decode(block.raw or b"{}", type=dict)


def _spoken(blocks: Sequence[Raw]) -> Raw:
    """Return blocks as a message of the assistant's."""
    return Raw(write({"role": "assistant", "content": list(blocks)}))


def _written(told: Answer) -> int:
    """Return the tokens that the compaction cost to write; a hidden text is about as long."""
    return told.spent.output if told.spent is not None else 0


def _weight(block: Opaque) -> int:
    """Return about how many tokens a compaction is: as its words have, or a sealed text as long as its seal."""
    said = _said(block)
    words = said.get("content")
    return count(words) if isinstance(words, str) else decoded_size(str(said.get("encrypted_content"))) // _CHARS


_CHARS = 4
"""Characters for one token of a text that nobody can see."""


def _tokens(raw: Raw) -> int:
    """Return the estimated tokens of a user's message beside a compaction, which nobody can read."""
    item = msgspec.json.decode(raw)
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, str):
        return count(content)
    texts = [one.get("text") for one in content or () if isinstance(one, dict)]
    return sum(count(text) for text in texts if isinstance(text, str))


# -- an answer that compacted by itself --------------------------------------------------------------------------------


def brought(answer: Message) -> int:
    """Return how many parts of an answer its newest compaction ends; 0 where the provider compacted nothing."""
    blocks = [(at, part) for at, part in enumerate(answer.parts) if isinstance(part, Opaque) and part.kind == KIND]
    places = [at for at, block in blocks if _holds(block)]
    return places[-1] + 1 if places else 0


def by_itself(api: str, model: str, answer: Message, index: int, twin: Message) -> Compaction | None:
    """Return the compaction that ``answer``, slot ``index`` of the log, brought along; nothing where it has none.

    All before the newest compaction in the answer gives way to it: the slots before ``index``, and the answer's own
    parts up to it. ``twin`` says the former to those who cannot read it: other providers, other models, people.
    """
    stop = brought(answer)
    block = answer.parts[stop - 1] if stop else None
    if not isinstance(block, Opaque) or block.raw is None:
        return None
    said = [Text(part.text) for part in answer.parts[:stop] if isinstance(part, Text)]
    told = Message(twin.role, (*twin.parts, *said))
    items = (_spoken([block.raw]),) if api == ANTHROPIC else (block.raw,)
    return Compaction(
        index,
        told,
        _weight(block),
        edits=tuple([_without(index, at, part) for at, part in enumerate(answer.parts[:stop])]),
        trigger=RULE,
        by=RULE,
        native=Made(items).native(api, model),
        twin=measure(told).size,
    )


def _without(index: int, at: int, part: Part) -> Edit:
    """Return the edit that leaves out part ``at`` of slot ``index``."""
    size = measure(Message("assistant", (part,))).size - MESSAGE_OVERHEAD
    return Edit(Span(index, index + 1, at), rule=RULE, why=_TAKEN, saves=size)


_TAKEN = "the provider compacted here, and that stands at the front now"
