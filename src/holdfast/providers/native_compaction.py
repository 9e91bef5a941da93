"""Compactions that a provider makes itself: how one is asked for, and what comes back, as the log takes it.

At a threshold the provider compacts by itself while it answers; on demand it is asked for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, Text
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, build_sized_message, estimate_text_tokens
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.api_spec import CompactionFormat
from holdfast.providers.common.compaction import COMPACTION_KIND, JsonObject, NativeCompactionRequest
from holdfast.providers.common.json.raw_json import count_base64_bytes, decode_json_fields, encode_json
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.providers.registry import API_SPECS
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import TRANSIENT_ERROR_KINDS, CompactionEntry
from holdfast.state.target import Target

NATIVE_RULE = "native"
"""Rule of the edits, and trigger of the compaction, by which the log takes over what a provider compacted by itself."""


def can_compact_natively(target: Target) -> bool:
    """Return whether the provider of ``target`` compacts a conversation when it is asked to."""
    return _get_compaction_format(target.api) is not None and target.dialect.supports_compaction


def returns_user_words(api: str) -> bool:
    """Return whether the user's messages stand in what comes back of a compaction on demand."""
    compaction = _get_compaction_format(api)
    return compaction is not None and compaction.returns_history


def _get_compaction_format(api: str) -> CompactionFormat | None:
    return API_SPECS[api].compaction if api in API_SPECS else None


# -- asking ------------------------------------------------------------------------------------------------------------


def build_server_compaction_fields(api: str, tokens: int, *, instructions: str = "", pause: bool = False) -> JsonObject:
    """Return the fields with which the provider compacts by itself above ``tokens`` input tokens.

    ``pause`` lets it stop behind the compaction (Anthropic alone); ``instructions`` take the place of its own prompt
    there. ``ConfigError`` for an API that cannot, and for a threshold that its provider refuses.
    """
    raise_if_wrong_type(ConfigError, api=(api, str), tokens=(tokens, int))
    compaction = _get_compaction_format(api)
    if compaction is None:
        raise ConfigError(f"{api} has no compaction at a threshold; compact with a model, or make an extract")
    if tokens < compaction.min_threshold_tokens:
        raise ConfigError(
            f"{api} refuses a compaction threshold of {tokens:,} tokens; "
            f"set {compaction.min_threshold_tokens:,} or more"
        )
    return compaction.build_threshold_fields(tokens, instructions, pause)


def build_native_compaction_request(
    api: str, body: bytes, *, instructions: str = "", in_band: bool = False
) -> NativeCompactionRequest:
    """Return the request that asks for a compaction of all messages in ``body``, which is left as it is.

    ``instructions`` say what counts above all. ``in_band`` asks by a last input item instead of at the address that
    Responses has for it. ``ConfigError`` for an API without compaction.
    """
    raw_fields = decode_json_fields(body, "the body")
    compaction = _get_compaction_format(api)
    if compaction is None:
        raise ConfigError(f"{api} compacts nothing on demand; let a model write the summary, or make an extract")
    return compaction.build_request(raw_fields, instructions.strip(), in_band)


def find_required_betas(api: str, body: bytes) -> tuple[str, ...]:
    """Return the beta features that a body of ``api`` needs for what stands in it."""
    compaction = _get_compaction_format(api)
    return () if compaction is None or compaction.find_betas is None else compaction.find_betas(body)


# -- what comes back ---------------------------------------------------------------------------------------------------


class NativeCompactionResult(Struct, frozen=True):
    """A compaction: ``items`` as the next list of messages takes them, and about how many tokens they are there."""

    items: tuple[Raw, ...]
    tokens: int = 0

    def append_user_texts(self, api: str, texts: Sequence[str]) -> NativeCompactionResult:
        """Return it with ``texts`` behind it, as the user's."""
        if not texts:
            return self
        user_items = API_SPECS[api].encode_message(Message("user", tuple(map(Text, texts))), None)
        return NativeCompactionResult(
            (*self.items, *map(Raw, user_items)), self.tokens + sum(map(estimate_text_tokens, texts))
        )

    def to_stored_json(self, api: str, model: str) -> Raw:
        """Return it as ``CompactionEntry.native``."""
        return Raw(encode_json({"api": api, "model": model, "items": self.items, "tokens": self.tokens}))


class NativeCompactionFailure(Struct, frozen=True):
    """Why there is no compaction: ``outcome`` is a word of the events; the history stays as it is."""

    outcome: str
    reason: str
    is_retryable: bool = False
    """Whether the same request may succeed a little later."""
    retry_after: float | None = None
    """Seconds after which the provider wants to be asked again, where it said so."""


_NOTHING_TO_SUMMARIZE_CODE = "compaction_nothing_to_summarize"
_UNAVAILABLE_CODE = "compaction_unavailable"
_ERROR_CODE = re.compile(rb'"error_code"\s*:\s*"(\w+)"')


def parse_native_compaction(api: str, answer: ParsedAnswer) -> NativeCompactionResult | NativeCompactionFailure:
    """Return the compaction in ``answer``, the answer to a request of ``build_native_compaction_request``, or why
    there is none in it.
    """
    if answer.error is not None:
        return _explain_refusal(answer.error)
    if answer.is_damaged:
        return NativeCompactionFailure(
            "provider_error", "the compaction came damaged; the history stays as it is", is_retryable=True
        )
    block = _find_newest_compaction(answer.message)
    if block is None or block.raw is None:
        return NativeCompactionFailure(
            "summary_rejected", "the provider answered without a compaction; the history stays as it is"
        )
    if not _has_compaction_content(block):
        return NativeCompactionFailure(
            "summary_rejected", "the provider's compaction is empty: it failed; the history stays as it is"
        )
    compaction = _get_compaction_format(api)
    block_tokens = _estimate_compaction_tokens(block)
    if compaction is not None and not compaction.returns_history:
        return NativeCompactionResult(
            (compaction.wrap_block(block.raw),), max(_get_output_tokens(answer), block_tokens)
        )
    items = tuple(map(Raw, answer.history_elements))
    user_tokens = sum(_estimate_user_item_tokens(raw) for raw in items)
    return NativeCompactionResult(items, (_get_output_tokens(answer) or block_tokens) + user_tokens)


def _explain_refusal(error: ErrorReport) -> NativeCompactionFailure:
    verdict = classify_error(error)
    body = error.body if isinstance(error.body, bytes) else encode_json(error.body)
    code = match[1].decode() if (match := _ERROR_CODE.search(body)) else ""
    status = f"HTTP {error.status}, " if error.status else ""
    why = f"the provider did not compact ({status}{code or verdict.kind}): {error.message_line[:_MAX_QUOTED_CHARS]}"
    if code == _NOTHING_TO_SUMMARIZE_CODE:
        return NativeCompactionFailure("nothing_to_compact", why)
    again = code == _UNAVAILABLE_CODE or (verdict.kind in TRANSIENT_ERROR_KINDS and not code.startswith("compaction_"))
    return NativeCompactionFailure("provider_error", why, again, verdict.retry_after)


_MAX_QUOTED_CHARS = 300
"""Characters of a provider's words that are repeated."""


def _find_newest_compaction(message: Message) -> Opaque | None:
    blocks = [part for part in message.parts if isinstance(part, Opaque) and part.kind == COMPACTION_KIND]
    return blocks[-1] if blocks else None


def _has_compaction_content(block: Opaque) -> bool:
    """Return whether a block, or item, says anything; null is a compaction that failed."""
    block_fields = _decode_compaction(block)
    return any(isinstance(block_fields.get(key), str) and block_fields[key] for key in ("content", "encrypted_content"))


def _decode_compaction(block: Opaque) -> JsonObject:
    return msgspec.json.decode(block.raw or b"{}", type=dict)


def _get_output_tokens(answer: ParsedAnswer) -> int:
    """Return the tokens that the compaction cost to write; a hidden text is about as long."""
    return answer.billed_usage.output if answer.billed_usage is not None else 0


def _estimate_compaction_tokens(block: Opaque) -> int:
    """Return about how many tokens a compaction is: as its words have, or a sealed text as long as its seal."""
    block_fields = _decode_compaction(block)
    words = block_fields.get("content")
    return (
        estimate_text_tokens(words)
        if isinstance(words, str)
        else count_base64_bytes(str(block_fields.get("encrypted_content"))) // _CHARS_PER_TOKEN
    )


_CHARS_PER_TOKEN = 4
"""Characters for one token of a text that nobody can see."""


def _estimate_user_item_tokens(raw: Raw) -> int:
    """Return the estimated tokens of a user's message beside a compaction, which nobody can read."""
    item = msgspec.json.decode(raw)
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, str):
        return estimate_text_tokens(content)
    texts = [piece.get("text") for piece in content or () if isinstance(piece, dict)]
    return sum(estimate_text_tokens(text) for text in texts if isinstance(text, str))


# -- an answer that compacted by itself --------------------------------------------------------------------------------


def count_parts_before_compaction(answer: Message) -> int:
    """Return how many parts of an answer its newest compaction ends; 0 where the provider compacted nothing."""
    blocks = [
        (at, part) for at, part in enumerate(answer.parts) if isinstance(part, Opaque) and part.kind == COMPACTION_KIND
    ]
    places = [at for at, block in blocks if _has_compaction_content(block)]
    return places[-1] + 1 if places else 0


def build_compaction_from_answer(
    api: str, model: str, answer: Message, index: int, readable_summary: Message
) -> CompactionEntry | None:
    """Return the compaction that ``answer``, slot ``index`` of the log, brought along; nothing where it has none.

    All before the newest compaction in the answer gives way to it: the slots before ``index``, and the answer's own
    parts up to it. ``readable_summary`` says the former to those who cannot read it: other providers, other models,
    people.
    """
    stop = count_parts_before_compaction(answer)
    block = answer.parts[stop - 1] if stop else None
    if not isinstance(block, Opaque) or block.raw is None:
        return None
    texts = [Text(part.text) for part in answer.parts[:stop] if isinstance(part, Text)]
    summary = Message(readable_summary.role, (*readable_summary.parts, *texts))
    compaction = _get_compaction_format(api)
    items = (block.raw if compaction is None else compaction.wrap_block(block.raw),)
    return CompactionEntry(
        index,
        summary,
        _estimate_compaction_tokens(block),
        edits=tuple([_build_removal_edit(index, at, part) for at, part in enumerate(answer.parts[:stop])]),
        trigger=NATIVE_RULE,
        author=NATIVE_RULE,
        native=NativeCompactionResult(items).to_stored_json(api, model),
        readable_tokens=build_sized_message(summary).tokens,
    )


def _build_removal_edit(index: int, at: int, part: Part) -> Edit:
    """Return the edit that leaves out part ``at`` of slot ``index``."""
    size = build_sized_message(Message("assistant", (part,))).tokens - MESSAGE_OVERHEAD
    return Edit(Span(index, index + 1, at), rule=NATIVE_RULE, why=_REPLACED_REASON, saves=size)


_REPLACED_REASON = "the provider compacted here, and that stands at the front now"
