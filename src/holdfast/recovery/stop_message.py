"""The text of a final error: what was measured, the limit, the smallest request possible, and two things to do."""

from __future__ import annotations

from holdfast.recovery.machine import CONTEXT_OVERFLOW_KIND, TRANSIENT_KINDS, ProviderRefusal, Stop

MAX_QUOTED_CHARS = 500
"""Characters of the provider's message that the error repeats: a gateway may answer with an HTML page."""

# Two things that a user can do, by the rule of the stop and, if that has none, by its kind.
_ADVICE_BY_RULE: dict[str, tuple[str, str]] = {
    "switched_off": ("switch `recovery.enabled` on", "compact the session and ask again"),
    "terminal": ("use an account with a higher limit of tokens a minute", "compact the session and ask again"),
    "seen": ("ask again: all earlier messages are in the log", "compact first, if the request was too large"),
    "wait_too_long": ("ask again after that time", "raise `retry.max_wait_seconds`"),
    "summary_too_large": ("name a model with a larger window for summaries", "begin a new session"),
    "compaction_failed": ("compact with another model", "begin a new session"),
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
    "media": ("leave the image or document out", "send a smaller one"),
    "output_limit": ("ask for less output", "set the model's output limit in the configuration"),
    "content": ("ask in other words", "use another model"),
    "rate_limit": ("ask again later", "raise `retry.max_retries`"),
}
_SIGNATURE_ADVICE = ("use the key and account that the signed content was made with", "begin a new session")
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

    ``window`` is the window that requests were planned for and ``min_tokens`` the smallest request possible, both in
    tokens, 0 if unknown. ``provider_message`` describes the failure of the last request, if possible in the provider's
    words.
    """
    message = " ".join(provider_message.split())[:MAX_QUOTED_CHARS]
    if not message and refusal:
        message = f"the provider refused the request ({_describe_refusal(stop, refusal)})"
    elif not message:
        message = "no request could be made"
    first_advice, second_advice = _choose_advice(stop, refusal)
    measurements = _format_measurements(stop, refusal, window, min_tokens)
    return "; ".join([message, *measurements, stop.why, f"{first_advice}, or {second_advice}"])


def _describe_refusal(stop: Stop, refusal: ProviderRefusal | None) -> str:
    if refusal is None:
        return stop.kind
    if refusal.status:
        return f"HTTP {refusal.status}, {refusal.kind}"
    return refusal.kind


def _choose_advice(stop: Stop, refusal: ProviderRefusal | None) -> tuple[str, str]:
    """Return two things that the user can do."""
    is_permanent = stop.rule == "permanent"
    if refusal and refusal.is_signature_error and is_permanent:
        return _SIGNATURE_ADVICE
    # The kind usually passes by itself, but the status of this refusal does not (a wrong address, for example).
    if stop.kind in TRANSIENT_KINDS and is_permanent:
        return _ADDRESS_ADVICE
    default = _TRANSIENT_ADVICE if stop.kind in TRANSIENT_KINDS else _FORMAT_ADVICE
    return _ADVICE_BY_RULE.get(stop.rule) or _ADVICE_BY_KIND.get(stop.kind, default)


def _format_measurements(
    stop: Stop,
    refusal: ProviderRefusal | None,
    window: int,
    min_tokens: int,
) -> list[str]:
    """Return phrases with the measured sizes and limits of an overflow; an empty list for other stops."""
    if stop.kind != CONTEXT_OVERFLOW_KIND or refusal is None:
        return []
    if refusal.counted_tokens:
        count = f"it counted {refusal.counted_tokens:,} tokens"
    else:
        count = "it gave no token count"
    if refusal.token_limit:
        limit = f"named a limit of {refusal.token_limit:,}"
    else:
        limit = "named no limit"
    estimate = f"we estimated {refusal.estimated_tokens:,}"
    if window:
        estimate += f" for a window of {window:,}"
    measurements = [f"{count} and {limit}", estimate]
    if min_tokens:
        measurements.append(
            f"the smallest possible request has {min_tokens:,} (system, tools, newest message, open calls)"
        )
    return measurements
