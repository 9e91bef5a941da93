"""How strict the provider is and how large: every setting with its unit, default and source."""

from __future__ import annotations

from math import isfinite
from typing import Literal

from msgspec import Struct

from holdfast.errors import ConfigError, raise_if_wrong_type


class ProviderSettings(Struct, frozen=True):
    """What kind of provider this is. The defaults are a provider with 200,000 tokens that enforces every rule."""

    window: int = 200_000
    """Tokens of the context window (Claude's usual one)."""
    max_output: int | None = None
    """Most tokens that a request may ask for; more is refused. Nothing = no such limit."""
    factor: float = 1.0
    """Tokens for one token of ``tokenizer``; Claude's newer models give about 1.3 for one of o200k."""
    tokenizer: Literal["auto", "o200k", "words"] = "auto"
    """What counts: ``o200k`` (the ``exact`` extra), ``words`` (our own word pieces), or the first of them at hand."""
    overflow: str = "native"
    """How a request over the window is answered: ``native`` is the API's own refusal, ``silent`` drops the front and
    answers, the others are the names in ``overflowing.WORDINGS``."""
    counts_output: bool | None = None
    """Whether the output asked for must fit beside the input. Nothing = as the model has it: Claude up to 4.5 and the
    older chat models refuse, newer ones stop at the window's end, Gemini counts input alone."""
    max_bytes: int | None = None
    """Bytes of a body. Nothing = the API's own limit (``reading.MAX_BYTES``)."""
    binds_thinking: Literal["auto", "always", "never"] = "auto"
    """Whether thinking is bound to everything before it. ``auto``: as the Claude model has it, unknown names bind."""
    accepted_seals: Literal["own", "any"] = "own"
    """Whose signatures and encrypted contents are taken: only those of a provider of ours, or anybody's."""
    has_cache: bool = True
    """Whether there is a prompt cache."""
    cache_minimum: int | None = None
    """Tokens of the shortest cached prefix. Nothing = as the model has it (``holdfast.state.target.CacheRules``)."""
    models: tuple[str, ...] = ()
    """Names that exist; empty = all do."""

    def __post_init__(self) -> None:
        """Refuse what no provider can be."""
        raise_if_wrong_type(ConfigError, factor=(self.factor, int | float), window=(self.window, int))
        raise_if_wrong_type(
            ConfigError, max_output=(self.max_output, int | None), max_bytes=(self.max_bytes, int | None)
        )
        if not (isfinite(self.factor) and self.factor > 0):
            raise ConfigError(f"a factor of {self.factor} counts nothing; give a finite number above 0, usually 1")
        for name in ("window", "max_output", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more")
