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

from holdfast.errors import Unrecognised
from holdfast.providers.common.json.lenient_json import count_of, fields_of, items_of, text_of
from holdfast.state.entries import Usage

_SAMPLED = ("message", "fallback_message")
"""Iterations whose prompt is the conversation."""


def usage(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Return what the field ``usage`` (Gemini: ``usageMetadata``) of an answer says of the last call; none without."""
    return counted(api, raw)[0]


def spent(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Return all that the field reports as paid for: the top level, and the calls that it leaves out."""
    return counted(api, raw)[1]


def counted(api: str, raw: bytes | Raw | None) -> tuple[Usage | None, Usage | None]:
    """Return what ``usage`` and ``spent`` do: the same, where nothing is told of single calls."""
    found, reader = fields_of(raw), _reader(api)
    if not _says(found):
        return None, None
    top, calls = reader(found), _calls(found)
    if not calls:
        return top, top
    own = [call for call in calls if text_of(call.get("type")) in _SAMPLED]
    paid = [top, *(reader(call) for call in calls if text_of(call.get("type")) not in _SAMPLED)]
    details = {key: found[key] for key in ("output_tokens_details",) if key in found and len(own) == 1}
    total = Usage(*(sum(getattr(call, name) for call in paid) for name in Usage.__struct_fields__))
    return reader(own[-1] | details) if own else top, total


def _reader(api: str) -> Callable[[Mapping[str, Raw]], Usage]:
    if api not in _READ:
        raise Unrecognised(f"nothing is known of the usage of {api!r}; the APIs are {', '.join(_READ)}")
    return _READ[api]


def _says(found: Mapping[str, Raw]) -> bool:
    """Return whether there is any number in a usage."""
    return any(bytes(raw)[:1].isdigit() for raw in found.values())


def _calls(found: Mapping[str, Raw]) -> list[dict[str, Raw]]:
    """Return the single calls behind an answer, where the usage has them."""
    return [call for raw in items_of(found.get("iterations")) if (call := fields_of(raw))]


# -- one usage ---------------------------------------------------------------------------------------------------------


def _anthropic(found: Mapping[str, Raw]) -> Usage:
    read, written = count_of(found.get("cache_read_input_tokens")), count_of(found.get("cache_creation_input_tokens"))
    thinking = count_of(fields_of(found.get("output_tokens_details")).get("thinking_tokens"))
    fresh, output = count_of(found.get("input_tokens")), count_of(found.get("output_tokens"))
    hour = count_of(fields_of(found.get("cache_creation")).get("ephemeral_1h_input_tokens"))
    return Usage(fresh + read + written, output, read, written, thinking, cache_write_1h=min(hour, written))


def _chat(found: Mapping[str, Raw]) -> Usage:
    prompt, answer = fields_of(found.get("prompt_tokens_details")), fields_of(found.get("completion_tokens_details"))
    input_, output = count_of(found.get("prompt_tokens")), count_of(found.get("completion_tokens"))
    reasoning = count_of(answer.get("reasoning_tokens"))
    if reasoning and count_of(found.get("total_tokens")) == input_ + output + reasoning:
        output += reasoning
    told = (prompt.get("cached_tokens"), found.get("prompt_cache_hit_tokens"), found.get("cached_tokens"))
    cached = max(map(count_of, told))
    input_ += cached if cached > input_ else 0
    return Usage(input_, output, cached, count_of(prompt.get("cache_write_tokens")), reasoning)


def _responses(found: Mapping[str, Raw]) -> Usage:
    prompt, answer = fields_of(found.get("input_tokens_details")), fields_of(found.get("output_tokens_details"))
    return Usage(
        count_of(found.get("input_tokens")),
        count_of(found.get("output_tokens")),
        count_of(prompt.get("cached_tokens")),
        count_of(prompt.get("cache_write_tokens")),
        count_of(answer.get("reasoning_tokens")),
    )


def _gemini(found: Mapping[str, Raw]) -> Usage:
    input_ = count_of(found.get("promptTokenCount")) + count_of(found.get("toolUsePromptTokenCount"))
    output, thoughts = count_of(found.get("candidatesTokenCount")), count_of(found.get("thoughtsTokenCount"))
    if count_of(found.get("totalTokenCount")) != input_ + output:
        output += thoughts
    return Usage(input_, output, count_of(found.get("cachedContentTokenCount")), 0, thoughts)


_READ: dict[str, Callable[[Mapping[str, Raw]], Usage]] = {
    "anthropic": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
}
