"""The strict provider: answer requests as a provider that enforces every rule does, without sockets or a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from threading import Lock
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.providers.registry import get_api_spec
from holdfast.testing.provider.answers.build_answer import AnswerContext, make_provider_reply
from holdfast.testing.provider.answers.encode_answer import AnswerSettings, make_answer_settings
from holdfast.testing.provider.answers.script import AnswerScript, AnswerSource
from holdfast.testing.provider.apis.anthropic import check_container
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
    make_server_request,
)
from holdfast.testing.provider.checks.media_check import check_inline_media
from holdfast.testing.provider.checks.size_limits import (
    PromptSize,
    check_request_limits,
    check_server_limits,
    cut_server_prompt,
    measure_prompt,
)
from holdfast.testing.provider.checks.token_counter import RequestCounter, get_token_counter
from holdfast.testing.provider.dialects.judge import adapt_refusal, check_server_rules
from holdfast.testing.provider.dialects.registry import find_server
from holdfast.testing.provider.faults.field_faults import check_field_faults
from holdfast.testing.provider.parse_request import ProviderRequest, parse_provider_request
from holdfast.testing.provider.request_pieces import split_into_blocks
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryCheck, HistoryDigest
from holdfast.testing.provider.signatures.response_history import ResponseStore


class JudgedRequest(Struct, frozen=True):
    """A request that was answered, with the reply and the provider's counts."""

    incoming: IncomingRequest
    reply: ProviderReply
    tokens: int = 0
    """Input tokens; 0 if the request was refused before they were counted."""
    cached: int = 0
    """Input tokens that were read from the cache."""
    rule: str = ""
    """The rule of the server (``dialects``) for which the request was refused; empty if it was another reason."""


class Provider:
    """A provider of all four APIs. Equal requests in equal order get equal replies. Safe for use from several threads.

    ``clock`` returns seconds and is read once per request, for the cache alone; without one, each request comes a
    second after the one before. Raises ``ConfigError`` for a tokenizer that is not installed and for an unknown
    overflow wording.
    """

    def __init__(
        self,
        settings: ProviderSettings | None = None,
        script: Sequence[ScriptedAnswer] | AnswerSource = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Create a provider with the answers of ``script``.

        After a sequence of answers, it goes on by the simple rule of ``AnswerScript``. An ``AnswerSource`` chooses each
        answer itself.
        """
        raise_if_wrong_type(ConfigError, settings=(settings, ProviderSettings | None))
        self.settings = settings or ProviderSettings()
        # Checked here, since an overflow may first occur in the middle of a long test.
        if self.settings.overflow not in overflowing.OVERFLOW_NAMES:
            names = ", ".join(overflowing.OVERFLOW_NAMES)
            raise ConfigError(f"no provider says an overflow as {self.settings.overflow!r}; choose one of {names}")
        self.server = find_server(self.settings.server)
        self.requests: list[JudgedRequest] = []
        self.response_store = ResponseStore()
        ticks = count()
        self._clock = clock or (lambda: float(next(ticks)))
        self._counter = RequestCounter(get_token_counter(self.settings.tokenizer), self.settings.factor)
        self._script: AnswerSource
        if isinstance(script, Sequence):
            for index, answer in enumerate(script):
                raise_if_wrong_type(ConfigError, **{f"script[{index}]": (answer, ScriptedAnswer)})
            self._script = AnswerScript(script)
        else:
            self._script = script
        self._cache = CacheLedger()
        self._lock = Lock()
        self._answer_count = 0

    @property
    def incoming_requests(self) -> list[IncomingRequest]:
        """All requests, in the order in which they arrived."""
        return [judged_request.incoming for judged_request in self.requests]

    def answer(self, request: IncomingRequest) -> ProviderReply:
        """Return the reply to a request; malformed ones get a refusal, never an exception."""
        with self._lock:
            judged_request = self._judge_request(request, self._clock())
            reply = judged_request.reply
            if self.server is not None and isinstance(reply, RefusalReply):
                judged_request = replace(judged_request, reply=adapt_refusal(self.server, reply))
            self.requests.append(judged_request)
            return judged_request.reply

    def answer_body(
        self,
        api: str,
        body: Mapping[str, Any] | bytes,
        *,
        endpoint: Endpoint = "generate",
        model: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> ProviderReply:
        """Return the reply to a body given as a mapping or as bytes."""
        get_api_spec(api)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        return self.answer(IncomingRequest(api, endpoint, data, model, headers=dict(headers or {})))

    # -- from refusal to answer ----------------------------------------------------------------------------------------

    # Form, references, rules and signatures are checked before the size, so that a request which breaks a rule is
    # refused for that even if it is too large as well.
    def _judge_request(self, incoming_request: IncomingRequest, now: float) -> JudgedRequest:
        server = self.server
        default_model = server.default_model if server is not None and not server.needs_model else ""
        parsed_request = parse_provider_request(
            incoming_request, self.settings.max_bytes, self.settings.models, default_model
        )
        if isinstance(parsed_request, RefusalReply):
            return JudgedRequest(incoming_request, parsed_request)
        request = self.response_store.resolve_references(parsed_request)
        if isinstance(request, RefusalReply):
            return JudgedRequest(incoming_request, request)
        broken_rule = self._check_rules(request)
        if broken_rule is not None:
            return broken_rule
        pieces = split_into_blocks(request.api, request.body)
        accepted_blocks = check_returned_parts(request, pieces, self.settings, self.response_store)
        if isinstance(accepted_blocks, RefusalReply):
            return JudgedRequest(incoming_request, accepted_blocks)
        visible_blocks = filter_visible_blocks(request, accepted_blocks.pieces)
        prompt_size = measure_prompt(visible_blocks, self._counter, request, self.settings)
        if incoming_request.endpoint == "count":
            return JudgedRequest(incoming_request, TokenCountReply(prompt_size.tokens), prompt_size.tokens)
        if server is None:
            refusal = check_request_limits(request, prompt_size, self.settings)
        else:
            server_request = make_server_request(request)
            prompt_size = cut_server_prompt(prompt_size, server, server_request, self.settings)
            refusal = check_server_limits(request, prompt_size, self.settings, server, server_request)
        if refusal is not None:
            return JudgedRequest(incoming_request, refusal, prompt_size.tokens)
        cache_tokens = self._serve_cache(request, prompt_size, now)
        reply = self._make_model_reply(request, prompt_size, cache_tokens, accepted_blocks)
        return JudgedRequest(incoming_request, reply, prompt_size.tokens, cache_tokens.read_tokens)

    def _check_rules(self, request: ProviderRequest) -> JudgedRequest | None:
        """Judge a request by the fields, the server's rules, and then those of its API; None if it breaks none."""
        refusal = check_field_faults(request.body, request.betas, self.settings.field_faults)
        if refusal is not None:
            return JudgedRequest(request.incoming, refusal)
        if self.server is not None:
            server_refusal = check_server_rules(self.server, make_server_request(request))
            if server_refusal is not None:
                return JudgedRequest(request.incoming, server_refusal.reply, rule=server_refusal.rule)
        ignores_types = self.server is not None and "openai-chat.media-bytes" in self.server.missing_rules
        refusal = check_inline_media(
            request.api, request.body, self.settings.unreadable_media, ignores_declared_type=ignores_types
        )
        if refusal is not None:
            return JudgedRequest(request.incoming, refusal)
        refusal = check_container(request.body, self.settings.expired_containers)
        if refusal is not None:
            return JudgedRequest(request.incoming, refusal)
        refusal = check_request_rules(request, self.server)
        return None if refusal is None else JudgedRequest(request.incoming, refusal)

    def _serve_cache(self, request: ProviderRequest, prompt_size: PromptSize, now: float) -> CacheTokens:
        """Serve the request from the cache; a prompt that was cut off silently has no prefix that could be cached."""
        if not self.settings.has_cache or prompt_size.dropped_tokens:
            return CacheTokens()
        cache_rules = get_cache_rules(request.api, request.model, self.settings.cache_minimum)
        return self._cache.serve_request(request, prompt_size.blocks, prompt_size.sums, cache_rules, now)

    def _make_model_reply(
        self,
        request: ProviderRequest,
        prompt_size: PromptSize,
        cache_tokens: CacheTokens,
        accepted_blocks: HistoryCheck,
    ) -> ModelAnswer | CompactReply:
        self._answer_count += 1
        answer_context = AnswerContext(
            request=request,
            prompt_size=prompt_size,
            placement=self._make_answer_settings(request, accepted_blocks),
            input_usage=_make_usage(prompt_size.tokens, cache_tokens),
            history=accepted_blocks,
            window=self.settings.window,
            count=self._counter.count_text,
        )
        reply = make_provider_reply(answer_context, lambda: self._choose_answer(request, accepted_blocks))
        # Kept even with `store: false`: the server still checks that items come back with their reasoning.
        if isinstance(reply, ModelAnswer) and request.api == "openai-responses":
            output_items = []
            for part in reply.parts:
                if part.raw is not None:
                    output_items.append(msgspec.json.decode(part.raw))
            self.response_store.store_answer(reply.id, request, output_items)
        return reply

    def _make_answer_settings(self, request: ProviderRequest, history: HistoryCheck) -> AnswerSettings:
        """Return the settings of an answer, with reasoning and ids in the form of the server."""
        answer_settings = make_answer_settings(request, HistoryDigest(history.pieces).state, self._answer_count)
        if self.server is None or request.api != "openai-chat":
            return answer_settings
        form = self.server.answers
        server_request = make_server_request(request)
        reasoning = form.get_reasoning_form(server_request) if form.is_thinking(server_request) else ""
        return replace(answer_settings, reasoning_form=reasoning, make_call_id=form.make_call_id)

    def _choose_answer(self, request: ProviderRequest, history: HistoryCheck) -> ScriptedAnswer:
        """Return the next answer; a model of Chat Completions that thinks always says so, and another one never."""
        answer = self._script.choose_next_answer(request, history.pieces)
        if self.server is None or request.api != "openai-chat":
            return answer
        if not self.server.answers.is_thinking(make_server_request(request)):
            return replace(answer, thinking="")
        # Without reasoning in its answers, a client that drops reasoning would never be refused for it.
        return replace(answer, thinking=answer.thinking or f"step {self._answer_count}")


def _make_usage(tokens: int, cache_tokens: CacheTokens) -> TokenUse:
    return TokenUse(
        input=tokens - cache_tokens.read_tokens - cache_tokens.write,
        output=0,
        cache_read=cache_tokens.read_tokens,
        cache_write=cache_tokens.write,
        cache_write_1h=cache_tokens.write_1h,
    )
