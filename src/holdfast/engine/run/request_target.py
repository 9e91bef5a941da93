"""The target of one request: its model's, with a window that the request negotiated or that its server stated."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast import events
from holdfast.config.catalog import LONG_WINDOW_BETA
from holdfast.engine.engine_resources import EngineResources
from holdfast.engine.session_runtime import SessionRuntime
from holdfast.engine.upstream.server_windows import LocalWindow
from holdfast.engine.upstream.upstream import Upstream, list_betas
from holdfast.errors import FormatError
from holdfast.planning.budget import LEARNED_ORIGIN
from holdfast.providers.common.json.raw_json import decode_json_value
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.state.target import ModelLimits, Target

WINDOW_RULE = "window"
"""Rule of the notice about a window that a server stated."""
NEGOTIATED_ORIGIN = "negotiated"
"""Beginning of ``window_source`` of a window that the request asks for with a beta."""
STATED_ORIGIN = "stated"
"""Beginning of ``window_source`` of a window that the server stated when it was asked."""
_USER_ORIGINS = frozenset({"asked for", "cap", LEARNED_ORIGIN})
"""Sources of a window that somebody set or that the provider taught: nothing overrides them."""
_DEFAULT_ORIGIN = "default"
_BODY_BETA_FIELDS = ("anthropic_beta", "betas")


def resolve_request_target(
    resources: EngineResources, api: str, model: str, upstream: Upstream | None, parsed_request: ParsedRequest | None
) -> Target:
    """Return the target of a request to ``model`` through ``upstream``, by default the engine's."""
    fields = {} if parsed_request is None else parsed_request.fields
    target = resources.resolve_target(api, model, upstream, fields)
    if target.limits.window_source in _USER_ORIGINS:
        return target
    upstream = upstream or resources.upstream
    limits = target.limits
    if LONG_WINDOW_BETA in _list_betas(upstream, parsed_request):
        limits = _apply_long_window(limits, resources.catalog.get_long_window(model))
    stated = resources.server_windows.get(upstream, model)
    if stated is not None:
        limits = _apply_stated_window(limits, stated)
    return target if limits is target.limits else replace(target, limits=limits)


def ask_for_window(runtime: SessionRuntime, upstream: Upstream, model: str) -> None:
    """Begin to ask a local server for the window of ``model``; its answer is told once."""
    resources = runtime.resources
    if not resources.asks_local_servers:
        return

    def tell_window(stated: LocalWindow) -> None:
        if stated.window.is_upper_bound:
            return  # the server may have loaded the model with less: no news that one can act on
        why = (
            f"the server at {stated.origin} ({stated.server}) says that {model} has a window of"
            f" {stated.window.tokens:,} tokens; later requests are planned for it, unless another is configured"
        )
        runtime.emit_event(events.NoticeGiven(runtime.key, WINDOW_RULE, why))

    resources.server_windows.ask(upstream, model, tell_window)


def _apply_long_window(limits: ModelLimits, long_window: int) -> ModelLimits:
    if long_window <= limits.window:
        return limits
    return replace(limits, window=long_window, window_source=f"{NEGOTIATED_ORIGIN}: {LONG_WINDOW_BETA}")


def _apply_stated_window(limits: ModelLimits, stated: LocalWindow) -> ModelLimits:
    """Return ``limits`` with the stated window: in place of a default, or where it is smaller than what we believed."""
    tokens = stated.window.tokens
    is_default = limits.window_source.startswith(_DEFAULT_ORIGIN)
    if tokens >= limits.window and (not is_default or stated.window.is_upper_bound):
        return limits
    max_input = min(limits.max_input, tokens) if limits.max_input else limits.max_input
    source = f"{STATED_ORIGIN} by {stated.server} at {stated.origin}"
    return replace(limits, window=tokens, max_input=max_input, window_source=source)


def _list_betas(upstream: Upstream, parsed_request: ParsedRequest | None) -> Iterable[str]:
    betas = [*list_betas(upstream)]
    for field in _BODY_BETA_FIELDS:
        raw = None if parsed_request is None else parsed_request.fields.get(field)
        if raw is None:
            continue
        try:
            value = decode_json_value(raw)
        except FormatError:
            continue
        if isinstance(value, list):
            betas += [beta for beta in value if isinstance(beta, str)]
    return betas
