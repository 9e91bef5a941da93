"""Options of requests that were changed because the provider is known to refuse them, as values that a log can keep.

What a server was not known to refuse until it did is a `FieldLesson` instead.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

MAX_CHANGED_OPTIONS = 64
"""Options that are kept for one model; further ones are told and not recorded. More than a body has options."""


class ChangedOption(Struct, frozen=True, omit_defaults=True):
    """One option of a client's requests that is sent in another form, or not at all."""

    rule: str
    """The rule that the option breaks."""
    path: str
    """JSON path of the option in the client's body."""
    what: str
    """What was wrong and what was done, in one line."""
    since: int = 0
    """When the first request with it was changed, in ms since 1970."""


def find_new_options(options: Iterable[ChangedOption], known: Iterable[ChangedOption]) -> tuple[ChangedOption, ...]:
    """Return those of ``options`` whose rule and place none of ``known`` has, each once."""
    seen = {(option.rule, option.path) for option in known}
    new_options = []
    for option in options:
        if (option.rule, option.path) not in seen:
            seen.add((option.rule, option.path))
            new_options.append(option)
    return tuple(new_options)
