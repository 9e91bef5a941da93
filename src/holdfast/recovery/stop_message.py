"""The last word about a run that stopped: what was measured, the limit, the floor, and two things to do."""

from __future__ import annotations

from holdfast.recovery.machine import CONTEXT_OVERFLOW_KIND, TRANSIENT_KINDS, ProviderRefusal, Stop

MAX_QUOTED_CHARS = 500
"""Characters of what happened that an error repeats: a provider may answer with a page."""

_ADVICE_BY_RULE: dict[str, tuple[str, str]] = {
    "switched_off": ("switch `recovery.enabled` on", "compact the session and ask again"),
    "terminal": ("use an account with a higher limit of tokens a minute", "compact the session and ask again"),
    "seen": ("ask again: what was said before is in the log", "compact first, if the request was too large"),
    "wait_too_long": ("ask again then", "raise `retry.max_wait_seconds`"),
    "summary_too_large": ("name a model with a larger window for summaries", "begin a new session"),
    "compaction_failed": ("compact with another model", "undo what the session cannot do without"),
}
_ADVICE_BY_KIND: dict[str, tuple[str, str]] = {
    CONTEXT_OVERFLOW_KIND: (
        "use a model with a larger window",
        "begin a new session with a shorter system prompt, fewer tools or a shorter message",
    ),
    "auth": ("check the key", "check that it may use this model"),
    "billing": ("check the account", "use another key"),
    "quota": ("wait until the quota is renewed", "use another key or model"),
    "model": ("check the model's name", "check the address"),
    "config": ("check the configuration", "run `holdfast doctor`"),
    "media": ("leave the picture or document out", "send it smaller"),
    "output_limit": ("ask for less output", "set the model's output limit in the configuration"),
    "content": ("ask in other words", "use another model"),
    "rate_limit": ("ask again later", "raise `retry.max_retries`"),
}
_SIGNATURE_ADVICE = ("ask with the key and account that it was made with", "begin a new session")
_FORMAT_ADVICE = ("run `holdfast lint` on the request", "use another model")
_TRANSIENT_ADVICE = ("ask again later", "check the address and the provider's status")
_ADDRESS_ADVICE = ("check the address", "check the model's name")


def format_stop_message(
    stop: Stop,
    refusal: ProviderRefusal | None = None,
    *,
    window: int = 0,
    min_tokens: int = 0,
    provider_message: str = "",
) -> str:
    """Return the text of a final error.

    ``window`` is what the requests were planned for, ``min_tokens`` the least that can be sent (both in tokens, 0 where
    nobody knows), ``provider_message`` what happened to the last one, in the provider's words as far as there are any.
    """
    first_cure, second_cure = _choose_advice(stop, refusal)
    refusal_text = (
        f"the provider refused the request ({_describe_refusal(stop, refusal)})"
        if refusal
        else "no request could be made"
    )
    parts = [
        " ".join(provider_message.split())[:MAX_QUOTED_CHARS] or refusal_text,
        *_format_measurements(stop, refusal, window, min_tokens),
        stop.why,
        f"{first_cure}, or {second_cure}",
    ]
    return "; ".join(parts)


def _describe_refusal(stop: Stop, refusal: ProviderRefusal | None) -> str:
    status = f"HTTP {refusal.status}, " if refusal and refusal.status else ""
    return status + (refusal.kind if refusal else stop.kind)


def _choose_advice(stop: Stop, refusal: ProviderRefusal | None) -> tuple[str, str]:
    """Return two things that somebody can do."""
    if refusal and refusal.is_signature_error and stop.rule == "permanent":
        return _SIGNATURE_ADVICE
    if stop.kind in TRANSIENT_KINDS and stop.rule == "permanent":
        return _ADDRESS_ADVICE
    default = _TRANSIENT_ADVICE if stop.kind in TRANSIENT_KINDS else _FORMAT_ADVICE
    return _ADVICE_BY_RULE.get(stop.rule) or _ADVICE_BY_KIND.get(stop.kind, default)


def _format_measurements(stop: Stop, refusal: ProviderRefusal | None, window: int, floor: int) -> list[str]:
    """Return what was measured of a request that was too large."""
    if stop.kind != CONTEXT_OVERFLOW_KIND or refusal is None:
        return []
    count_text = f"it counted {refusal.counted_tokens:,} tokens" if refusal.counted_tokens else "it gave no count"
    limit = f"takes {refusal.token_limit:,}" if refusal.token_limit else "names no limit"
    estimate_text = f"we estimated {refusal.estimated_tokens:,}" + (f" for a window of {window:,}" if window else "")
    minimum_texts = (
        [f"the least that can be sent is {floor:,} (system, tools, newest message, open calls)"] if floor else []
    )
    return [f"{count_text} and {limit}", estimate_text, *minimum_texts]
