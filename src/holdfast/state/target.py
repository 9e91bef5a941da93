"""Where a request goes, and what the planner is told about the target and the world around it."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias, get_args

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.state.dialect import Dialect
from holdfast.state.entries import RequestSetup
from holdfast.state.validation import ValidationProblem, find_validation_problem

OverflowStep: TypeAlias = Literal["", "compact", "truncate", "media", "fallback"]
"""How to make a refused request smaller: compact, cut results, drop media, or reduce whatever still can be."""
CacheState: TypeAlias = Literal["warm", "cold"]
_ALLOWED_WORDS: dict[str, tuple[str, ...]] = {
    "cache_state": get_args(CacheState),
    "overflow_step": get_args(OverflowStep),
}
"""The words that a field of ``PlanInputs`` may have, by its name."""


class ModelLimits(Struct, frozen=True, omit_defaults=True):
    """Limits of a model in tokens. ``window_source`` says where the window came from."""

    window: int = 200_000
    max_output: int | None = None
    requested_output: int | None = None
    """``max_tokens`` as the caller asked for it."""
    max_input: int | None = None
    """Tokens a prompt may have, if the provider limits that apart from the window."""
    window_source: str = "default"
    min_output: int = 0
    """Tokens that must stay free for any answer, because the model may think in nearly as many; 0 if not known."""


class CacheRules(Struct, frozen=True, omit_defaults=True):
    """How a provider's prompt cache works; prices are multiples of the input price."""

    ttl_seconds: int = 300
    """Seconds that an entry lives after its last use."""
    min_prefix_tokens: int = 1024
    """Tokens that a prefix must have to be cached."""
    write_factor: float = 1.25
    read_factor: float = 0.1
    lookback: int | None = 20
    """Content blocks before a breakpoint in which an entry is looked for; None means no limit."""
    is_automatic: bool = False
    """The provider caches without breakpoints, in steps of ``step_tokens`` tokens."""
    step_tokens: int = 128


class Prices(Struct, frozen=True, omit_defaults=True):
    """Prices in dollars for a million tokens."""

    input: float = 3.0
    output: float = 15.0
    cache_read: float = 0.3
    cache_write: float = 3.75
    is_assumed: bool = False
    """Whether they are another model's, because nobody told this one's: good enough to decide by, not to report."""


class Target(Struct, frozen=True, omit_defaults=True, dict=True):
    """API, model, dialect, limits and prices of the requests being planned."""

    api: str = "anthropic"
    model: str = ""
    dialect: Dialect = Dialect("anthropic", has_system_field=True, clients_drop_thinking=True)
    limits: ModelLimits = ModelLimits()
    setup: RequestSetup = RequestSetup()
    cache_rules: CacheRules = CacheRules()
    prices: Prices = Prices()
    prior_ratio: float = 1.0
    """Tokens of this model for one of our estimated tokens, before any usage was reported."""

    def with_setup(self, tokens: int, digest: str = "") -> Target:
        """Return the target for requests with a system prompt and tools of ``tokens`` tokens.

        Change ``digest`` whenever system prompt or tools change, since the prompt cache breaks then.
        """
        return replace(self, setup=RequestSetup(digest, tokens))

    @cached_property
    def validation_problem(self) -> ValidationProblem | None:
        """The first field with a value that cannot be planned with, or None; checked once for each instance."""
        return find_validation_problem(self, "target")


class SummaryResult(Struct, frozen=True, omit_defaults=True):
    """A summary that was made outside of the planner, for the messages before ``stop``."""

    stop: int
    text: str
    """What the model reads; empty if the provider compacted (the extract is then its readable version)."""
    author: str = "model"
    """Who made it: ``model``, ``native`` or ``hook``."""
    native: Raw | None = None
    """The provider's own compaction, as in ``CompactionEntry.native``."""


class PlanInputs(Struct, frozen=True, omit_defaults=True, dict=True):
    """Everything the planner knows about the outside. It is told all of this and asks for nothing."""

    cache_state: CacheState = "warm"
    """Whether the provider's cache still holds the prefix of the last request: ``warm`` or ``cold``."""
    idle_seconds: float = 0
    """Seconds since the last request."""
    allow_auto_compaction: bool = True
    """Whether the plan may compact without being asked (by size, not by ``force_compaction``)."""
    force_compaction: bool = False
    """Compact now, whatever the trigger says (``/compact``)."""
    can_spill: bool = True
    """Whether texts can be stored; if not, every result stays whole."""
    overflow_step: OverflowStep = ""
    """What recovery asks for after an overflow, which may also be a compaction."""
    refused_media: tuple[str, ...] | None = None
    """With the step ``media``: the sources of the media that the provider refused, which alone are replaced; empty for
    the newest of those that it has not taken before. None if it refused no single one."""
    can_summarize: bool = False
    """Whether somebody can write summaries. If so, the plan asks for one (``Plan.summary_request``) where it would
    otherwise make an extract."""
    summary: SummaryResult | None = None
    """The summary that was asked for; used if the plan would cut at its ``stop``."""
    restored_texts: tuple[str, ...] = ()
    """Texts read from their source (rules, skills) to be put after a new summary, within their budgets."""
    is_breaker_cooled: bool = False
    """Whether the circuit breaker opened (compaction failed too often in a row), but so long ago that one more attempt
    is allowed."""
    can_auto_continue: bool = True
    """Whether a compaction that cuts a turn may tell the model to go on, if the policy does so."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for an unknown word and ``TypeError`` for a time that is no number."""
        # A struct does not check its types when it is created.
        for name, allowed_values in _ALLOWED_WORDS.items():
            value = getattr(self, name)
            if value not in allowed_values:
                choices = ", ".join(map(repr, allowed_values))
                raise ValueError(f"PlanInputs.{name} is {value!r}; it is one of {choices}")
        if not isinstance(self.idle_seconds, int | float):
            type_name = type(self.idle_seconds).__name__
            raise TypeError(f"PlanInputs.idle_seconds is of type {type_name}; give seconds")

    @property
    def is_compaction_requested(self) -> bool:
        """Whether the user or recovery asks for a compaction."""
        return self.force_compaction or self.overflow_step == "compact"

    @cached_property
    def validation_problem(self) -> ValidationProblem | None:
        """The first field with a value that cannot be planned with, or None; checked once for each instance."""
        return find_validation_problem(self, "inputs")
