"""The strict provider: a request in, the reply of a provider that enforces every rule out. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.providers.registry import get_api_spec
from holdfast.testing.provider.answers.build_answer import AnswerContext, make_provider_reply
from holdfast.testing.provider.answers.encode_answer import make_answer_settings
from holdfast.testing.provider.answers.script import AnswerScript, AnswerSource
from holdfast.testing.provider.cache import CacheLedger, CacheTokens, get_cache_rules
from holdfast.testing.provider.calls import (
    CompactReply,
    Endpoint,
    IncomingRequest,
    ModelAnswer,
    ProviderReply,
    RefusalReply,
    ScriptedAnswer,
    TokenCountReply,
    TokenUse,
)
from holdfast.testing.provider.checks import overflow_wordings as overflowing
from holdfast.testing.provider.checks.check_request import (
    check_request_rules,
    check_returned_parts,
    filter_visible_blocks,
)
from holdfast.testing.provider.checks.size_limits import PromptSize, check_request_limits, measure_prompt
from holdfast.testing.provider.checks.token_counter import RequestCounter, get_token_counter
from holdfast.testing.provider.parse_request import ProviderRequest, parse_provider_request
from holdfast.testing.provider.request_pieces import split_into_blocks
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryCheck, HistoryDigest
from holdfast.testing.provider.signatures.response_history import ResponseStore


class JudgedRequest(Struct, frozen=True):
    """One line of the provider's own ledger."""

    incoming: IncomingRequest
    reply: ProviderReply
    tokens: int = 0
    """Input tokens as counted; 0 where the request was refused before."""
    cached: int = 0
    """Input tokens read from the cache."""


class Provider:
    """A provider of all four APIs. Equal requests in equal order get equal replies; safe for several threads.

    ``clock`` gives seconds and is read once a request, for the cache alone; without one each request is a second later.
    Raises ``ConfigError`` for a tokenizer that is not installed and an overflow nobody says.
    """

    def __init__(
        self,
        settings: ProviderSettings | None = None,
        script: Sequence[ScriptedAnswer] | AnswerSource = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Open a provider that will say ``script``, then answer by a simple rule (``AnswerScript``), or as a speaker
        does.
        """
        raise_if_wrong_type(ConfigError, settings=(settings, ProviderSettings | None))
        self.settings = settings or ProviderSettings()
        if self.settings.overflow not in overflowing.OVERFLOW_NAMES:
            names = ", ".join(overflowing.OVERFLOW_NAMES)
            raise ConfigError(f"no provider says an overflow as {self.settings.overflow!r}; choose one of {names}")
        self.requests: list[JudgedRequest] = []
        self.response_store = ResponseStore()
        ticks = count()
        self._clock = clock or (lambda: float(next(ticks)))
        self._scale = RequestCounter(get_token_counter(self.settings.tokenizer), self.settings.factor)
        if isinstance(script, Sequence):
            raise_if_wrong_type(
                ConfigError,
                **{f"script[{at}]": (scripted_answer, ScriptedAnswer) for at, scripted_answer in enumerate(script)},
            )
        self._script: AnswerSource = AnswerScript(script) if isinstance(script, Sequence) else script
        self._ledger, self._lock = CacheLedger(), Lock()
        self._number = 0

    @property
    def incoming_requests(self) -> list[IncomingRequest]:
        """All requests, in the order in which they came."""
        return [judged_request.incoming for judged_request in self.requests]

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Return the reply to any request at all; whatever its bytes are, nothing is raised."""
        with self._lock:
            judgement = self._judge_request(request, self._clock())
            self.requests.append(judgement)
            return judgement.reply

    def answer_body(
        self,
        api: str,
        body: Mapping[str, Any] | bytes,
        *,
        endpoint: Endpoint = "generate",
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> ProviderReply:
        """Return the reply to a body that is given as a value, or as its bytes."""
        get_api_spec(api)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.answer(IncomingRequest(api, endpoint, data, model, headers=dict(headers or {})))

    # -- from refusal to answer ----------------------------------------------------------------------------------------

    def _judge_request(self, incoming_request: IncomingRequest, now: float) -> JudgedRequest:
        parsed_request = parse_provider_request(incoming_request, self.settings.max_bytes, self.settings.models)
        if isinstance(parsed_request, RefusalReply):
            return JudgedRequest(incoming_request, parsed_request)
        request = self.response_store.resolve_references(parsed_request)
        if isinstance(request, RefusalReply):
            return JudgedRequest(incoming_request, request)
        refusal = check_request_rules(request)
        if refusal is not None:
            return JudgedRequest(incoming_request, refusal)
        pieces = split_into_blocks(request.api, request.body)
        accepted_blocks = check_returned_parts(request, pieces, self.settings, self.response_store)
        if isinstance(accepted_blocks, RefusalReply):
            return JudgedRequest(incoming_request, accepted_blocks)
        prompt_size = measure_prompt(
            filter_visible_blocks(request, accepted_blocks.pieces), self._scale, request, self.settings
        )
        if incoming_request.endpoint == "count":
            return JudgedRequest(incoming_request, TokenCountReply(prompt_size.tokens), prompt_size.tokens)
        refusal = check_request_limits(request, prompt_size, self.settings)
        if refusal is not None:
            return JudgedRequest(incoming_request, refusal, prompt_size.tokens)
        hit = self._serve_cache(request, prompt_size, now)
        return JudgedRequest(
            incoming_request,
            self._make_model_reply(request, prompt_size, hit, accepted_blocks),
            prompt_size.tokens,
            hit.read_tokens,
        )

    def _serve_cache(self, request: ProviderRequest, prompt_size: PromptSize, now: float) -> CacheTokens:
        """Return what the cache gives; a request that lost its front has none."""
        if not self.settings.has_cache or prompt_size.dropped_tokens:
            return CacheTokens()
        cache_rules = get_cache_rules(request.api, request.model, self.settings.cache_minimum)
        return self._ledger.serve_request(request, prompt_size.blocks, prompt_size.sums, cache_rules, now)

    def _make_model_reply(
        self, request: ProviderRequest, prompt_size: PromptSize, hit: CacheTokens, accepted_blocks: HistoryCheck
    ) -> ModelAnswer | CompactReply:
        self._number += 1
        setting = make_answer_settings(request, HistoryDigest(accepted_blocks.pieces).state, self._number)
        used, count = _make_usage(prompt_size.tokens, hit), self._scale.count_text
        answer_context = AnswerContext(
            request, prompt_size, setting, used, accepted_blocks, self.settings.window, count
        )
        answer = make_provider_reply(
            answer_context, lambda: self._script.choose_next_answer(request, accepted_blocks.pieces)
        )
        if isinstance(answer, ModelAnswer) and request.api == "openai-responses":
            output_items = [msgspec.json.decode(part.raw) for part in answer.parts if part.raw is not None]
            self.response_store.store_answer(answer.id, request, output_items)
        return answer


def _make_usage(tokens: int, hit: CacheTokens) -> TokenUse:
    return TokenUse(tokens - hit.read_tokens - hit.write, 0, hit.read_tokens, hit.write, cache_write_1h=hit.write_1h)
