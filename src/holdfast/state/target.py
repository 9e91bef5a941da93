"""Where a request goes, and what is known of the place."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias, get_args

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.state.dialect import Dialect
from holdfast.state.entries import RequestSetup
from holdfast.state.validation import ValidationProblem, find_validation_problem

OverflowStep: TypeAlias = Literal["", "compact", "truncate", "media", "fallback"]
"""How a request that was refused is made smaller: compacted · results cut · media gone · whatever still gives way."""
CacheState: TypeAlias = Literal["warm", "cold"]
_ALLOWED_WORDS: dict[str, tuple[str, ...]] = {
    "cache_state": get_args(CacheState),
    "overflow_step": get_args(OverflowStep),
}
"""The words of a ``PlanInputs``, by its field."""


class ModelLimits(Struct, frozen=True, omit_defaults=True):
    """Sizes in tokens. ``window_source`` says where the window came from."""

    window: int = 200_000
    max_output: int | None = None
    requested_output: int | None = None
    """``max_tokens`` as the caller asked for it."""
    max_input: int | None = None
    """Tokens a prompt may have, where the provider says that apart from the window."""
    window_source: str = "default"
    min_output: int = 0
    """Tokens that any answer must have, since its model may think in nearly as many; 0 where nobody says so."""


class CacheRules(Struct, frozen=True, omit_defaults=True):
    """How a provider's prompt cache works; prices are multiples of the input price."""

    ttl_seconds: int = 300
    """Seconds an entry lives after its last use."""
    min_prefix_tokens: int = 1024
    """Tokens a prefix needs to be cached."""
    write_factor: float = 1.25
    read_factor: float = 0.1
    lookback: int | None = 20
    """Blocks looked back from a breakpoint; nothing = no limit."""
    is_automatic: bool = False
    """The provider caches without breakpoints, in steps of ``step_tokens`` tokens."""
    step_tokens: int = 128


class Prices(Struct, frozen=True, omit_defaults=True):
    """Dollars for a million tokens."""

    input: float = 3.0
    output: float = 15.0
    cache_read: float = 0.3
    cache_write: float = 3.75
    is_assumed: bool = False
    """Whether nobody told them: they are another model's, to decide by and not to be reported."""


class Target(Struct, frozen=True, omit_defaults=True, dict=True):
    """API, model, dialect and limits of the requests being planned."""

    api: str = "anthropic"
    model: str = ""
    dialect: Dialect = Dialect("anthropic", has_system_field=True, clients_drop_thinking=True)
    limits: ModelLimits = ModelLimits()
    setup: RequestSetup = RequestSetup()
    cache_rules: CacheRules = CacheRules()
    prices: Prices = Prices()
    prior_ratio: float = 1.0
    """Tokens of this model for one token of the estimator, before any usage was reported."""

    def with_setup(self, tokens: int, digest: str = "") -> Target:
        """Return the target for requests whose system prompt and tools take ``tokens`` tokens.

        Change ``digest`` whenever system prompt or tools change: the prompt cache breaks then.
        """
        return replace(self, setup=RequestSetup(digest, tokens))

    @cached_property
    def validation_problem(self) -> ValidationProblem | None:
        """What no request can be planned by, or nothing; looked for once."""
        return find_validation_problem(self, "target")


class SummaryResult(Struct, frozen=True, omit_defaults=True):
    """A summary that was made outside of the planner: it stands for the slots before ``stop``."""

    stop: int
    text: str
    """What the model reads; where the provider compacted, nothing: the extract is the readable twin."""
    author: str = "model"
    """Who made it: ``model``, ``native`` or ``hook``."""
    native: Raw | None = None
    """What the provider made, as ``CompactionEntry.native``."""


class PlanInputs(Struct, frozen=True, omit_defaults=True, dict=True):
    """All that the planner knows of the world outside: nothing here is asked for, everything is told."""

    cache_state: CacheState = "warm"
    """``warm`` or ``cold``: whether the provider still holds the prefix of the last request."""
    idle_seconds: float = 0
    """Seconds since the last request."""
    is_breaker_closed: bool = True
    """Whether automatic compaction is allowed (the breaker is closed)."""
    force_compaction: bool = False
    """Compact now, whatever the trigger says (``/compact``)."""
    can_spill: bool = True
    """Whether texts can be stored away; where they cannot, every result stays whole."""
    overflow_step: OverflowStep = ""
    """What recovery asks for after an overflow, a compaction too."""
    can_summarize: bool = False
    """Whether somebody can write summaries: the plan asks for one (``Plan.ask``) where it would make an extract."""
    summary: SummaryResult | None = None
    """The summary that was asked for; it counts where the plan would cut at its ``stop``."""
    restored_texts: tuple[str, ...] = ()
    """Texts from their source (rules, plan, skills) that stand behind a new summary, within their budgets."""
    retry_compaction: bool = False
    """Whether compaction failed too often, but so long ago that it may be tried once more."""
    can_auto_continue: bool = True
    """Whether a compaction that cuts a turn may tell the model to go on, where the policy does."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for words that there are not, ``TypeError`` for a time that is none."""
        for name, allowed_values in _ALLOWED_WORDS.items():
            if (value := getattr(self, name)) not in allowed_values:
                raise ValueError(f"PlanInputs.{name} is {value!r}; it is one of {', '.join(map(repr, allowed_values))}")
        if not isinstance(self.idle_seconds, int | float):
            raise TypeError(f"PlanInputs.idle_seconds is of type {type(self.idle_seconds).__name__}; give seconds")

    @property
    def is_compaction_requested(self) -> bool:
        """Whether a compaction is asked for, by somebody or by recovery."""
        return self.force_compaction or self.overflow_step == "compact"

    @cached_property
    def validation_problem(self) -> ValidationProblem | None:
        """What no request can be planned by, or nothing; looked for once."""
        return find_validation_problem(self, "inputs")
