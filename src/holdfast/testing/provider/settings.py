"""The settings of the strict provider, with units and sources."""

from __future__ import annotations

from math import isfinite
from typing import Literal

from msgspec import Struct

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.testing.provider.dialects.registry import SERVER_NAMES
from holdfast.testing.provider.faults.field_faults import FieldFault


class ProviderSettings(Struct, frozen=True):
    """Size and strictness of a provider. The defaults are one with 200,000 tokens that enforces every rule."""

    server: str = ""
    """The server to be, by its name in ``dialects.registry``; empty for the provider of each API itself."""
    window: int = 200_000
    """Tokens of the context window (Claude's usual size)."""
    max_output: int | None = None
    """Largest output limit that a request may ask for; None for no such limit."""
    factor: float = 1.0
    """Tokens for one token of ``tokenizer``; Claude's newer models count about 1.3 for one of o200k."""
    tokenizer: Literal["auto", "o200k", "words"] = "auto"
    """``o200k`` (needs the extra ``exact``), ``words`` (our own word pieces), or the first that is installed."""
    overflow: str = "native"
    """The reply to a request over the window.

    ``native`` is the API's own refusal; ``silent`` drops the front of the prompt and answers; the others are names in
    ``overflow_wordings.OVERFLOW_WORDINGS``.
    """
    counts_output: bool | None = None
    """Whether the requested output must fit beside the input.

    None follows the model: Claude up to 4.5 and older chat models refuse, newer ones stop at the end of the window, and
    Gemini counts only the input.
    """
    max_bytes: int | None = None
    """Largest body in bytes; None for the API's own limit (``parse_request.MAX_BYTES``)."""
    binds_thinking: Literal["auto", "always", "never"] = "auto"
    """Whether thinking is bound to everything before it; ``auto`` follows the Claude model, and binds unknown ones."""
    accepted_seals: Literal["own", "any"] = "own"
    """Whether only signatures of a strict provider are accepted, or any; encrypted contents are signatures too."""
    has_cache: bool = True
    """Whether there is a prompt cache."""
    cache_minimum: int | None = None
    """Tokens of the shortest cached prefix; None follows the model (``cache.get_cache_rules``)."""
    field_faults: tuple[FieldFault, ...] = ()
    """Single fields that this server refuses, wants or caps, beside the rules of its API."""
    unreadable_media: tuple[str, ...] = ()
    """Beginnings of the base64 of media that cannot be read although they look fine, as those of a damaged file."""
    expired_containers: tuple[str, ...] = ()
    """Ids of containers that no longer exist: a request that names one is refused (Anthropic)."""
    models: tuple[str, ...] = ()
    """Names of the models that exist; empty for any name."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for values that no provider can have."""
        raise_if_wrong_type(ConfigError, factor=(self.factor, int | float), window=(self.window, int))
        raise_if_wrong_type(
            ConfigError,
            max_output=(self.max_output, int | None),
            max_bytes=(self.max_bytes, int | None),
        )
        if self.server and self.server not in SERVER_NAMES:
            raise ConfigError(f"no server is named {self.server!r}; choose one of {', '.join(SERVER_NAMES)}")
        if not (isfinite(self.factor) and self.factor > 0):
            raise ConfigError(f"a factor of {self.factor} counts nothing; give a finite number above 0, usually 1")
        for name in ("window", "max_output", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; give 1 or more")
