"""Tokens as each API reports them, in one sense: that of ``Usage``.

===================  =========================================  ==========================================
field of ``Usage``   sum of                                     holds
===================  =========================================  ==========================================
``input``                                                       the whole prompt, cached or not
  anthropic          input_tokens + cache_read_input_tokens     input_tokens alone leaves out what was read
                     + cache_creation_input_tokens              from the cache and what was written to it
  openai-chat        prompt_tokens                              includes cached and written tokens; where
                                                                more are cached than there are, added
  openai-responses   input_tokens                               includes cached and written tokens
  gemini             promptTokenCount                           includes cachedContentTokenCount, not what
                     + toolUsePromptTokenCount                  Google's own tools put in
``output``                                                      all the model made, with its reasoning
  anthropic          output_tokens                              includes thinking
  openai-chat        completion_tokens                          includes reasoning_tokens at OpenAI; where
                                                                total_tokens shows it does not (xAI), added
  openai-responses   output_tokens                              includes reasoning_tokens
  gemini             candidatesTokenCount + thoughtsTokenCount  two counts that do not overlap, unless
                                                                totalTokenCount says so
===================  =========================================  ==========================================

Anthropic's top level is the sum over the calls of the model behind one answer (server-side tools make several) and
leaves out compactions and advisors; ``iterations`` has them one by one. The last ``message`` (or ``fallback_message``)
of them is what the window holds; a ``compaction`` never is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from holdfast.errors import UnrecognizedContent
from holdfast.providers.common.json.lenient_json import (
    read_json_count,
    read_json_fields,
    read_json_items,
    read_json_text,
)
from holdfast.state.entries import Usage

_CONVERSATION_ITERATIONS = ("message", "fallback_message")
"""Iterations whose prompt is the conversation."""


def parse_window_usage(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Return the tokens of the last call, by the field ``usage`` (Gemini: ``usageMetadata``) of an answer; None without
    it.
    """
    return parse_usage_pair(api, raw)[0]


def parse_billed_usage(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Return all that the field reports as paid for: the top level, and the calls that it leaves out."""
    return parse_usage_pair(api, raw)[1]


def parse_usage_pair(api: str, raw: bytes | Raw | None) -> tuple[Usage | None, Usage | None]:
    """Return what ``parse_window_usage`` and ``parse_billed_usage`` do: the same, where nothing is told of single
    calls.
    """
    fields, reader = read_json_fields(raw), _get_usage_parser(api)
    if not _has_counts(fields):
        return None, None
    top, calls = reader(fields), _list_iterations(fields)
    if not calls:
        return top, top
    own = [call for call in calls if read_json_text(call.get("type")) in _CONVERSATION_ITERATIONS]
    paid = [top, *(reader(call) for call in calls if read_json_text(call.get("type")) not in _CONVERSATION_ITERATIONS)]
    details = {key: fields[key] for key in ("output_tokens_details",) if key in fields and len(own) == 1}
    total = Usage(*(sum(getattr(call, name) for call in paid) for name in Usage.__struct_fields__))
    return reader(own[-1] | details) if own else top, total


def _get_usage_parser(api: str) -> Callable[[Mapping[str, Raw]], Usage]:
    if api not in _USAGE_PARSERS:
        raise UnrecognizedContent(f"nothing is known of the usage of {api!r}; the APIs are {', '.join(_USAGE_PARSERS)}")
    return _USAGE_PARSERS[api]


def _has_counts(fields: Mapping[str, Raw]) -> bool:
    """Return whether there is any number in a usage."""
    return any(bytes(raw)[:1].isdigit() for raw in fields.values())


def _list_iterations(fields: Mapping[str, Raw]) -> list[dict[str, Raw]]:
    """Return the single calls behind an answer, where the usage has them."""
    return [call for raw in read_json_items(fields.get("iterations")) if (call := read_json_fields(raw))]


# -- one usage ---------------------------------------------------------------------------------------------------------


def _parse_anthropic_usage(fields: Mapping[str, Raw]) -> Usage:
    cache_read, cache_write = (
        read_json_count(fields.get("cache_read_input_tokens")),
        read_json_count(fields.get("cache_creation_input_tokens")),
    )
    thinking = read_json_count(read_json_fields(fields.get("output_tokens_details")).get("thinking_tokens"))
    fresh, output = read_json_count(fields.get("input_tokens")), read_json_count(fields.get("output_tokens"))
    hour = read_json_count(read_json_fields(fields.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return Usage(
        fresh + cache_read + cache_write,
        output,
        cache_read,
        cache_write,
        thinking,
        cache_write_1h=min(hour, cache_write),
    )


def _parse_chat_usage(fields: Mapping[str, Raw]) -> Usage:
    prompt, answer = (
        read_json_fields(fields.get("prompt_tokens_details")),
        read_json_fields(fields.get("completion_tokens_details")),
    )
    input_, output = read_json_count(fields.get("prompt_tokens")), read_json_count(fields.get("completion_tokens"))
    reasoning = read_json_count(answer.get("reasoning_tokens"))
    if reasoning and read_json_count(fields.get("total_tokens")) == input_ + output + reasoning:
        output += reasoning
    cache_counts = (prompt.get("cached_tokens"), fields.get("prompt_cache_hit_tokens"), fields.get("cached_tokens"))
    cached = max(map(read_json_count, cache_counts))
    input_ += cached if cached > input_ else 0
    return Usage(input_, output, cached, read_json_count(prompt.get("cache_write_tokens")), reasoning)


def _parse_responses_usage(fields: Mapping[str, Raw]) -> Usage:
    prompt, answer = (
        read_json_fields(fields.get("input_tokens_details")),
        read_json_fields(fields.get("output_tokens_details")),
    )
    return Usage(
        read_json_count(fields.get("input_tokens")),
        read_json_count(fields.get("output_tokens")),
        read_json_count(prompt.get("cached_tokens")),
        read_json_count(prompt.get("cache_write_tokens")),
        read_json_count(answer.get("reasoning_tokens")),
    )


def _parse_gemini_usage(fields: Mapping[str, Raw]) -> Usage:
    input_ = read_json_count(fields.get("promptTokenCount")) + read_json_count(fields.get("toolUsePromptTokenCount"))
    output, thoughts = (
        read_json_count(fields.get("candidatesTokenCount")),
        read_json_count(fields.get("thoughtsTokenCount")),
    )
    if read_json_count(fields.get("totalTokenCount")) != input_ + output:
        output += thoughts
    return Usage(input_, output, read_json_count(fields.get("cachedContentTokenCount")), 0, thoughts)


_USAGE_PARSERS: dict[str, Callable[[Mapping[str, Raw]], Usage]] = {
    "anthropic": _parse_anthropic_usage,
    "openai-chat": _parse_chat_usage,
    "openai-responses": _parse_responses_usage,
    "gemini": _parse_gemini_usage,
}
