"""The last word about a run that stopped: what was measured, the limit, the floor, and two things to do."""

from __future__ import annotations

from holdfast.recovery.machine import OVERFLOWED, TRANSIENT, Refused, Stop

SAID = 500
"""Characters of what happened that an error repeats: a provider may answer with a page."""

_BY_RULE: dict[str, tuple[str, str]] = {
    "switched_off": ("switch `emergency` on", "compact the session and ask again"),
    "terminal": ("use an account with a higher limit of tokens a minute", "compact the session and ask again"),
    "seen": ("ask again: what was said before is in the log", "compact first, if the request was too large"),
    "wait_too_long": ("ask again then", "raise `retry_wait_most`"),
    "summary_too_large": ("name a model with a larger window for summaries", "begin a new session"),
    "compaction_failed": ("compact with another model", "undo what the session cannot do without"),
}
_BY_KIND: dict[str, tuple[str, str]] = {
    OVERFLOWED: (
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
    "rate_limit": ("ask again later", "raise `retries_most`"),
}
_SEALED = ("ask with the key and account that it was made with", "begin a new session")
_SHAPE = ("run `holdfast lint` on the request", "use another model")
_LATER = ("ask again later", "check the address and the provider's status")
_NOWHERE = ("check the address", "check the model's name")


def explain(stop: Stop, refused: Refused | None = None, *, window: int = 0, floor: int = 0, said: str = "") -> str:
    """Return the text of a final error.

    ``window`` is what the requests were planned for, ``floor`` the least that can be sent (both in tokens, 0 where
    nobody knows), ``said`` what happened to the last one, in the provider's words as far as there are any.
    """
    one, other = _cures(stop, refused)
    named = f"the provider refused the request ({_named(stop, refused)})" if refused else "no request could be made"
    parts = [
        " ".join(said.split())[:SAID] or named,
        *_numbers(stop, refused, window, floor),
        stop.why,
        f"{one}, or {other}",
    ]
    return "; ".join(parts)


def _named(stop: Stop, refused: Refused | None) -> str:
    status = f"HTTP {refused.status}, " if refused and refused.status else ""
    return status + (refused.kind if refused else stop.kind)


def _cures(stop: Stop, refused: Refused | None) -> tuple[str, str]:
    """Return two things that somebody can do."""
    if refused and refused.sealed and stop.rule == "permanent":
        return _SEALED
    if stop.kind in TRANSIENT and stop.rule == "permanent":
        return _NOWHERE
    default = _LATER if stop.kind in TRANSIENT else _SHAPE
    return _BY_RULE.get(stop.rule) or _BY_KIND.get(stop.kind, default)


def _numbers(stop: Stop, refused: Refused | None, window: int, floor: int) -> list[str]:
    """Return what was measured of a request that was too large."""
    if stop.kind != OVERFLOWED or refused is None:
        return []
    counted = f"it counted {refused.requested:,} tokens" if refused.requested else "it gave no count"
    limit = f"takes {refused.limit:,}" if refused.limit else "names no limit"
    ours = f"we estimated {refused.tokens:,}" + (f" for a window of {window:,}" if window else "")
    least = [f"the least that can be sent is {floor:,} (system, tools, newest message, open calls)"] if floor else []
    return [f"{counted} and {limit}", ours, *least]
