"""Read token counts of each API in one meaning, that of ``Usage``; the APIs' own names mean different things.

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
"""

from __future__ import annotations

from msgspec import Raw

from holdfast.errors import UnrecognizedContent
from holdfast.providers.answers.usage_pair import UsagePair, read_usage_pair
from holdfast.providers.registry import API_SPECS
from holdfast.state.entries import Usage


def parse_window_usage(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Parse the usage of the last model call, the tokens that the window holds.

    ``raw`` is the field ``usage`` of an answer (Gemini: ``usageMetadata``). Returns None if it has no counts.
    """
    return parse_usage_pair(api, raw).window


def parse_billed_usage(api: str, raw: bytes | Raw | None) -> Usage | None:
    """Parse the usage of all model calls that are paid for, including those that the top level leaves out, or None."""
    return parse_usage_pair(api, raw).billed


def parse_usage_pair(api: str, raw: bytes | Raw | None) -> UsagePair:
    """Parse both usages at once; they are equal if the API reports no single calls.

    Raises ``UnrecognizedContent`` for an unknown API.
    """
    if api not in API_SPECS:
        raise UnrecognizedContent(f"no API is called {api!r}; the APIs are {', '.join(API_SPECS)}")
    return read_usage_pair(raw, API_SPECS[api].answers.parse_usage)
