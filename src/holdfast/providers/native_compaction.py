"""Ask a provider to compact a conversation itself, and take over the result in the form of a log entry.

Above a threshold a provider compacts on its own while it answers; on demand it is asked for a compaction and nothing
else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeGuard

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
"""Rule of the edits, and trigger of the compaction, by which the log takes over a compaction that the provider made."""


def can_compact_natively(target: Target) -> bool:
    """Return whether the provider of ``target`` compacts a conversation on demand."""
    return _get_compaction_format(target.api) is not None and target.dialect.supports_compaction


def returns_user_words(api: str) -> bool:
    """Return whether a compaction on demand returns the user's messages beside the compaction."""
    compaction = _get_compaction_format(api)
    return compaction is not None and compaction.returns_history


def _get_compaction_format(api: str) -> CompactionFormat | None:
    spec = API_SPECS.get(api)
    return None if spec is None else spec.compaction


# -- asking ------------------------------------------------------------------------------------------------------------


def build_server_compaction_fields(
    api: str,
    tokens: int,
    *,
    instructions: str = "",
    pause: bool = False,
) -> JsonObject:
    """Return the fields that make the provider compact on its own above ``tokens`` input tokens.

    On Anthropic, ``pause`` makes it stop after the compaction, and ``instructions`` replace its own prompt. Raises
    ``ConfigError`` for an API without such a threshold, and for a threshold that its provider refuses.
    """
    raise_if_wrong_type(ConfigError, api=(api, str), tokens=(tokens, int))
    compaction = _get_compaction_format(api)
    if compaction is None:
        raise ConfigError(f"{api} does not compact at a threshold; compact with a model or with an extract")
    if tokens < compaction.min_threshold_tokens:
        raise ConfigError(
            f"{api} refuses a compaction threshold of {tokens:,} tokens; "
            f"set {compaction.min_threshold_tokens:,} or more"
        )
    return compaction.build_threshold_fields(tokens, instructions, pause)


def build_native_compaction_request(
    api: str,
    body: bytes,
    *,
    instructions: str = "",
    in_band: bool = False,
) -> NativeCompactionRequest:
    """Build the request that asks for a compaction of all messages in ``body``, which is not changed.

    ``instructions`` name the most important points. With ``in_band``, Responses is asked by a last input item instead
    of at its compaction endpoint. Raises ``ConfigError`` for an API without compaction.
    """
    raw_fields = decode_json_fields(body, "the body")
    compaction = _get_compaction_format(api)
    if compaction is None:
        raise ConfigError(f"{api} does not compact on demand; compact with a model or with an extract")
    return compaction.build_request(raw_fields, instructions.strip(), in_band)


def find_required_betas(api: str, body: bytes) -> tuple[str, ...]:
    """Return the beta features that the content of ``body`` needs."""
    compaction = _get_compaction_format(api)
    if compaction is None or compaction.find_betas is None:
        return ()
    return compaction.find_betas(body)


# -- results -----------------------------------------------------------------------------------------------------------


class NativeCompactionResult(Struct, frozen=True):
    """A compaction: ``items`` to send as the next list of messages, and about how many tokens they take."""

    items: tuple[Raw, ...]
    tokens: int = 0

    def append_user_texts(self, api: str, texts: Sequence[str]) -> NativeCompactionResult:
        """Return this compaction with a user message of ``texts`` after it."""
        if not texts:
            return self
        message = Message("user", tuple(map(Text, texts)))
        user_items = API_SPECS[api].encode_message(message, None)
        tokens = self.tokens + sum(map(estimate_text_tokens, texts))
        return NativeCompactionResult((*self.items, *map(Raw, user_items)), tokens)

    def to_stored_json(self, api: str, model: str) -> Raw:
        """Return this compaction in the form of ``CompactionEntry.native``."""
        return Raw(encode_json({"api": api, "model": model, "items": self.items, "tokens": self.tokens}))


class NativeCompactionFailure(Struct, frozen=True):
    """Why there is no compaction; the history stays as it is. ``outcome`` is one of the outcomes that events report."""

    outcome: str
    reason: str
    is_retryable: bool = False
    """Whether the same request may succeed a little later."""
    retry_after: float | None = None
    """Seconds to wait before a retry, if the provider said so."""


_NOTHING_TO_SUMMARIZE_CODE = "compaction_nothing_to_summarize"
_UNAVAILABLE_CODE = "compaction_unavailable"
_ERROR_CODE = re.compile(rb'"error_code"\s*:\s*"(\w+)"')


def parse_native_compaction(api: str, answer: ParsedAnswer) -> NativeCompactionResult | NativeCompactionFailure:
    """Return the compaction in the answer to ``build_native_compaction_request``, or the reason for its absence."""
    if answer.error is not None:
        return _explain_refusal(answer.error)
    if answer.is_damaged:
        return NativeCompactionFailure(
            "provider_error", "the provider's compaction was damaged; the history is unchanged", is_retryable=True
        )
    block = _find_newest_compaction(answer.message)
    if block is None or block.raw is None:
        return NativeCompactionFailure(
            "summary_rejected", "the provider answered without a compaction; the history is unchanged"
        )
    if not _has_compaction_content(block):
        return NativeCompactionFailure(
            "summary_rejected", "the provider's compaction failed and is empty; the history is unchanged"
        )
    compaction = _get_compaction_format(api)
    block_tokens = _estimate_compaction_tokens(block)
    output_tokens = _get_output_tokens(answer)
    if compaction is not None and not compaction.returns_history:
        # The larger of two guesses, since the encrypted part cannot be counted and a compaction that turns out larger
        # than planned overflows the next request.
        return NativeCompactionResult((compaction.wrap_block(block.raw),), max(output_tokens, block_tokens))
    items = tuple(map(Raw, answer.history_elements))
    user_tokens = sum(map(_estimate_user_item_tokens, items))
    return NativeCompactionResult(items, (output_tokens or block_tokens) + user_tokens)


def _explain_refusal(error: ErrorReport) -> NativeCompactionFailure:
    verdict = classify_error(error)
    body = error.body if isinstance(error.body, bytes) else encode_json(error.body)
    match = _ERROR_CODE.search(body)
    code = "" if match is None else match[1].decode()
    status = f"HTTP {error.status}, " if error.status else ""
    quote = error.message_line[:_MAX_QUOTED_CHARS]
    why = f"the provider did not compact ({status}{code or verdict.kind}): {quote}"
    if code == _NOTHING_TO_SUMMARIZE_CODE:
        return NativeCompactionFailure("nothing_to_compact", why)
    # Anthropic documents ``compaction_unavailable`` as passing, and all other ``compaction_…`` codes as faults of the
    # request, which fails the same way again.
    is_transient_kind = verdict.kind in TRANSIENT_ERROR_KINDS and not code.startswith("compaction_")
    is_retryable = code == _UNAVAILABLE_CODE or is_transient_kind
    return NativeCompactionFailure("provider_error", why, is_retryable, verdict.retry_after)


_MAX_QUOTED_CHARS = 300
"""Characters quoted from a provider's error. Chosen by judgement: enough for a sentence or two, short enough for a line
of the log."""


def _find_newest_compaction(message: Message) -> Opaque | None:
    for part in reversed(message.parts):
        if _is_compaction(part):
            return part
    return None


def _is_compaction(part: Part) -> TypeGuard[Opaque]:
    return isinstance(part, Opaque) and part.kind == COMPACTION_KIND


def _has_compaction_content(block: Opaque) -> bool:
    """Return whether a compaction has any text, readable or encrypted; one with null content failed."""
    fields = _decode_compaction(block)
    texts = (fields.get("content"), fields.get("encrypted_content"))
    return any(isinstance(text, str) and text for text in texts)


def _decode_compaction(block: Opaque) -> JsonObject:
    return msgspec.json.decode(block.raw or b"{}", type=dict)


def _get_output_tokens(answer: ParsedAnswer) -> int:
    """Return the output tokens billed for a compaction: the best guess at the length of text that is encrypted."""
    return 0 if answer.billed_usage is None else answer.billed_usage.output


def _estimate_compaction_tokens(block: Opaque) -> int:
    """Estimate the tokens of a compaction from its text, or from the length of its encrypted content."""
    fields = _decode_compaction(block)
    text = fields.get("content")
    if isinstance(text, str):
        return estimate_text_tokens(text)
    return count_base64_bytes(str(fields.get("encrypted_content"))) // _CHARS_PER_TOKEN


_CHARS_PER_TOKEN = 4
"""Characters a token of encrypted text, which no tokenizer can read: the usual rule of thumb for English prose."""


def _estimate_user_item_tokens(raw: Raw) -> int:
    """Estimate the tokens of a user message that came back beside a compaction; 0 for other items."""
    item = msgspec.json.decode(raw)
    content = item.get("content") if isinstance(item, dict) else None
    if isinstance(content, str):
        return estimate_text_tokens(content)
    tokens = 0
    for piece in content or ():
        text = piece.get("text") if isinstance(piece, dict) else None
        if isinstance(text, str):
            tokens += estimate_text_tokens(text)
    return tokens


# -- an answer that compacted by itself --------------------------------------------------------------------------------


def count_parts_before_compaction(answer: Message) -> int:
    """Count the parts of an answer up to its newest compaction, that one included; 0 without a compaction."""
    for index in reversed(range(len(answer.parts))):
        part = answer.parts[index]
        if _is_compaction(part) and _has_compaction_content(part):
            return index + 1
    return 0


def build_compaction_from_answer(
    api: str,
    model: str,
    answer: Message,
    index: int,
    readable_summary: Message,
) -> CompactionEntry | None:
    """Build the log's compaction from one that the provider made within ``answer``; None if the answer has none.

    ``index`` is the position of the answer in the log. The compaction replaces all messages before it, and the parts of
    the answer up to the compaction. ``readable_summary`` covers the same messages for readers that cannot decrypt it:
    other providers, other models, people.
    """
    stop = count_parts_before_compaction(answer)
    block = answer.parts[stop - 1] if stop else None
    if not isinstance(block, Opaque) or block.raw is None:
        return None
    replaced_parts = answer.parts[:stop]
    replaced_texts = []
    for part in replaced_parts:
        if isinstance(part, Text):
            replaced_texts.append(Text(part.text))
    summary = Message(readable_summary.role, (*readable_summary.parts, *replaced_texts))
    compaction = _get_compaction_format(api)
    item = block.raw if compaction is None else compaction.wrap_block(block.raw)
    return CompactionEntry(
        index,
        summary,
        _estimate_compaction_tokens(block),
        edits=tuple([_build_removal_edit(index, place, part) for place, part in enumerate(replaced_parts)]),
        trigger=NATIVE_RULE,
        author=NATIVE_RULE,
        native=NativeCompactionResult((item,)).to_stored_json(api, model),
        readable_tokens=build_sized_message(summary).tokens,
    )


def _build_removal_edit(index: int, place: int, part: Part) -> Edit:
    """Build the edit that removes part ``place`` of message ``index``."""
    message = build_sized_message(Message("assistant", (part,)))
    tokens = message.tokens - MESSAGE_OVERHEAD
    return Edit(
        Span(index, index + 1, place),
        rule=NATIVE_RULE,
        why=_REPLACED_REASON,
        saves=tokens,
    )


_REPLACED_REASON = "the provider compacted the messages here; its compaction is now at the beginning"
