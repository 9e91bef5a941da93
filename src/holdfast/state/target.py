"""Where a request goes, and what is known of the place."""

from __future__ import annotations

from functools import cached_property
from typing import Literal, TypeAlias, get_args

from msgspec import Raw, Struct

from holdfast.state.dialect import Dialect
from holdfast.state.entries import Frame
from holdfast.state.validation import Fault, fault_in

Rung: TypeAlias = Literal["", "compact", "truncate", "media", "fallback"]
"""How a request that was refused is made smaller: compacted · results cut · media gone · whatever still gives way."""
Warmth: TypeAlias = Literal["warm", "cold"]
_KNOWN: dict[str, tuple[str, ...]] = {"cache": get_args(Warmth), "rung": get_args(Rung)}
"""The words of a ``World``, by its field."""


class Limits(Struct, frozen=True, omit_defaults=True):
    """Sizes in tokens. ``origin`` says where the window came from."""

    window: int = 200_000
    max_output: int | None = None
    asked_output: int | None = None
    """``max_tokens`` as the caller asked for it."""
    max_input: int | None = None
    """Tokens a prompt may have, where the provider says that apart from the window."""
    origin: str = "default"
    least_output: int = 0
    """Tokens that any answer must have, since its model may think in nearly as many; 0 where nobody says so."""


class CacheRules(Struct, frozen=True, omit_defaults=True):
    """How a provider's prompt cache works; prices are multiples of the input price."""

    ttl: int = 300
    """Seconds an entry lives after its last use."""
    minimum: int = 1024
    """Tokens a prefix needs to be cached."""
    write: float = 1.25
    read: float = 0.1
    lookback: int | None = 20
    """Blocks looked back from a breakpoint; nothing = no limit."""
    automatic: bool = False
    """The provider caches without breakpoints, in steps of ``step`` tokens."""
    step: int = 128


class Prices(Struct, frozen=True, omit_defaults=True):
    """Dollars for a million tokens."""

    input: float = 3.0
    output: float = 15.0
    read: float = 0.3
    write: float = 3.75
    assumed: bool = False
    """Whether nobody told them: they are another model's, to decide by and not to be reported."""


class Target(Struct, frozen=True, omit_defaults=True, dict=True):
    """API, model, dialect and limits of the requests being planned."""

    api: str = "anthropic"
    model: str = ""
    dialect: Dialect = Dialect("anthropic")
    limits: Limits = Limits()
    frame: Frame = Frame()
    cache: CacheRules = CacheRules()
    prices: Prices = Prices()
    prior: float = 1.0
    """Tokens of this model for one token of the estimator, before any usage was reported."""

    @cached_property
    def fault(self) -> Fault | None:
        """What no request can be planned by, or nothing; looked for once."""
        return fault_in(self, "target")


class Written(Struct, frozen=True, omit_defaults=True):
    """A summary that was made outside of the planner: it stands for the slots before ``stop``."""

    stop: int
    text: str
    """What the model reads; where the provider compacted, nothing: the extract is the readable twin."""
    by: str = "model"
    """Who made it: ``model``, ``native`` or ``hook``."""
    native: Raw | None = None
    """What the provider made, as ``Compaction.native``."""


class World(Struct, frozen=True, omit_defaults=True, dict=True):
    """All that the planner knows of the world outside: nothing here is asked for, everything is told."""

    cache: Warmth = "warm"
    """``warm`` or ``cold``: whether the provider still holds the prefix of the last request."""
    idle: float = 0
    """Seconds since the last request."""
    breaker: bool = True
    """Whether automatic compaction is allowed (the breaker is closed)."""
    force: bool = False
    """Compact now, whatever the trigger says (``/compact``)."""
    spill: bool = True
    """Whether texts can be stored away; where they cannot, every result stays whole."""
    rung: Rung = ""
    """What recovery asks for after an overflow, a compaction too."""
    writes: bool = False
    """Whether somebody can write summaries: the plan asks for one (``Plan.ask``) where it would make an extract."""
    written: Written | None = None
    """The summary that was asked for; it counts where the plan would cut at its ``stop``."""
    restored: tuple[str, ...] = ()
    """Texts from their source (rules, plan, skills) that stand behind a new summary, within their budgets."""
    cooled: bool = False
    """Whether compaction failed too often, but so long ago that it may be tried once more."""
    continues: bool = True
    """Whether a compaction that cuts a turn may tell the model to go on, where the policy does (``auto_continue``)."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for words that there are not, ``TypeError`` for a time that is none."""
        for name, known in _KNOWN.items():
            if (given := getattr(self, name)) not in known:
                raise ValueError(f"World.{name} is {given!r}; it is one of {', '.join(map(repr, known))}")
        if not isinstance(self.idle, int | float):
            raise TypeError(f"World.idle is of type {type(self.idle).__name__}; give seconds")

    @property
    def compacts(self) -> bool:
        """Whether a compaction is asked for, by somebody or by recovery."""
        return self.force or self.rung == "compact"

    @cached_property
    def fault(self) -> Fault | None:
        """What no request can be planned by, or nothing; looked for once."""
        return fault_in(self, "world")
