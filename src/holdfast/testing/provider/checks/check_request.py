"""Check a request by the rules of its API, then by what only the provider that made its parts can know."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.providers.registry import API_SPECS
from holdfast.providers.rules.rule import Rule
from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider.answers.compaction import check_compaction_blocks, drop_compacted_blocks
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.checks.refusals import make_rule_refusal
from holdfast.testing.provider.dialects.server_dialect import ServerDialect
from holdfast.testing.provider.dialects.server_request import ServerRequest
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.provider.request_pieces import PromptBlock
from holdfast.testing.provider.settings import ProviderSettings
from holdfast.testing.provider.signatures.anthropic_thinking import THINKING_FIELDS, HistoryCheck, check_signed_thinking
from holdfast.testing.provider.signatures.gemini_thoughts import check_thought_signatures
from holdfast.testing.provider.signatures.response_history import ResponseStore


def check_request_rules(request: ProviderRequest, server: ServerDialect | None = None) -> RefusalReply | None:
    """Return the refusal of a request that breaks a rule of its API, or None.

    Rules that ``server`` is known not to have are left out.
    """
    findings = validate_request(
        request.received,
        request.api,
        betas=request.betas,
        model=request.model,
        version=request.version,
        rules=_list_api_rules(request.api, server.missing_rules if server is not None else frozenset()),
    )
    return make_rule_refusal(request.api, findings, request.body)


def _list_api_rules(api: str, missing_rules: frozenset[str]) -> tuple[Rule, ...]:
    """Return the rules of an API without the missing ones.

    The list is explicit, because the validator by itself adds what Holdfast knows of the model's server. This provider
    must not share that: it is the judge of it.
    """
    return tuple([rule for rule in API_SPECS[api].rules.rules if rule.name not in missing_rules])


def make_server_request(request: ProviderRequest) -> ServerRequest:
    """Return the request as the rules of a server see it."""
    header = request.incoming.headers.get("anthropic-beta", "")
    header_betas = frozenset(filter(None, [name.strip() for name in header.split(",")]))
    return ServerRequest(
        api=request.api,
        body=request.body,
        model=request.model.lower(),
        stream=request.incoming.stream or request.body.get("stream") is True,
        betas=request.betas,
        header_betas=header_betas,
        size=len(request.incoming.body),
    )


def check_returned_parts(
    request: ProviderRequest,
    pieces: Sequence[PromptBlock],
    settings: ProviderSettings,
    response_store: ResponseStore,
) -> HistoryCheck | RefusalReply:
    """Check the parts that the provider made and signed itself.

    Returns the history without reasoning that was made for another one, or the refusal of parts that were changed.
    """
    if request.api == "anthropic":
        return check_compaction_blocks(pieces, settings) or check_signed_thinking(request, pieces, settings)
    if request.api == "openai-responses":
        return response_store.check_items(request, pieces, settings)
    refusal = check_thought_signatures(request, settings) if request.api == "gemini" else None
    return refusal or HistoryCheck(tuple(pieces))


def filter_visible_blocks(request: ProviderRequest, pieces: Sequence[PromptBlock]) -> list[PromptBlock]:
    """Return the blocks that the model reads: without those before a compaction, and without forgotten thinking."""
    forgotten_end = 0
    if request.api == "anthropic" and is_old_thinking_dropped(request.model):
        forgotten_end = _find_newest_user_words(pieces)
    visible_blocks = []
    for index, block in enumerate(pieces):
        is_thinking = block.section == "messages" and block.kind in THINKING_FIELDS
        if index >= forgotten_end or not is_thinking:
            visible_blocks.append(block)
    return drop_compacted_blocks(request.api, visible_blocks)


_FORGETFUL_MODELS = re.compile(
    r"claude-(?:v?[12](?!\d)|instant|3(?!\d))|opus-4(?![-.][5-9])|sonnet-4(?![-.][6-9])|haiku-4"
)
"""Claude up to Opus 4.1, Sonnet 4.5 and Haiku 4.5, which drop old thinking (prompt caching page)."""


def is_old_thinking_dropped(model: str) -> bool:
    """Return whether ``model`` drops its thinking at the next user message, and so misses the cache from there on."""
    return _FORGETFUL_MODELS.search(model.lower()) is not None


def _find_newest_user_words(pieces: Sequence[PromptBlock]) -> int:
    """Return the index of the newest block of a user that is not a tool result, or 0."""
    for index in range(len(pieces) - 1, -1, -1):
        if pieces[index].role == "user" and pieces[index].kind != "tool_result":
            return index
    return 0
