"""The catalogue: what is known of models, caches and prices, from our tables and from ``holdfast.toml``.

What is known of a model is looked up value by value, so a line may say one thing only; of prices the first line
counts::

    [[model]]
    match = "qwen3-coder*"
    window = 32_768
    images = 4

    [[price]]
    match = "qwen3-coder*"
    input = 0.0
    output = 0.0

    [cache.mine]
    ttl = 3600
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.planning.budget import DEFAULT_WINDOW, told_window
from holdfast.planning.settings_check import LARGEST
from holdfast.providers.models import anthropic_dialect, chat_dialect, gemini_dialect, responses_dialect
from holdfast.providers.models import trusting as trusted
from holdfast.state.calibration.calibration import LEAST_LIMIT
from holdfast.state.dialect import Dialect
from holdfast.state.target import CacheRules, Limits, Prices

DEFAULT_MODEL = "claude-sonnet-4-5"
"""The model whose prices replay takes when none is named (METRICS, "Cost and cache")."""
UNKNOWN_PRIOR = 1.1
"""Tokens for one estimated token of a model that no line matches (the reference's prior for all others)."""

_DIALECTS: dict[str, Callable[[str], Dialect]] = {
    "anthropic": anthropic_dialect,
    "openai-responses": responses_dialect,
    "gemini": gemini_dialect,
}
"""What makes the dialect of each API but Chat Completions, where it also counts whose server it is."""
_CACHES = {"anthropic": "anthropic-1024", "openai": "openai", "gemini": "gemini"}
"""The cache assumed of a provider's API when the model is not known, or another provider's."""

Api: TypeAlias = Literal["anthropic", "openai-chat", "openai-responses", "gemini"]
Pattern: TypeAlias = Annotated[str, Meta(min_length=1)]
Match: TypeAlias = Pattern | Annotated[tuple[Pattern, ...], Meta(min_length=1)]
"""What the name of a model looks like, the case of its letters aside: one pattern, or several."""
Tokens = Annotated[int, Meta(ge=1, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Rate = Annotated[float, Meta(ge=0, le=LARGEST)]
"""Dollars for a million tokens, or a multiple of them."""


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """One line about models; a field that is left out is looked for in the next line that matches."""

    match: Match
    api: Api | None = None
    provider: str | None = None
    """Whose server speaks Chat Completions: ``openai``, ``mistral``, or another, which gets the strictest rules."""
    window: Annotated[int, Meta(ge=LEAST_LIMIT, le=LARGEST)] | None = None
    """Tokens that prompt and answer may have together; under 1,024 it is a limit of something else."""
    max_input: Tokens | None = None
    """Tokens that a prompt may have, where the provider says that apart from the window."""
    max_output: Tokens | None = None
    cache: str | None = None
    """Name of a ``[cache.…]`` table."""
    prior: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    """Tokens for one estimated token. [H] No tokenizer is ten times as fine or as coarse as another."""
    family: str | None = None
    images: Count | None = None
    """Images that one request may hold."""
    max_bytes: Annotated[int, Meta(ge=1, le=LARGEST)] | None = None
    """Bytes of a request body."""
    media: tuple[str, ...] | None = None
    """MIME types that may be sent; an empty list means any."""
    binds_thinking: bool | None = None
    """Thinking is signed over everything before it, and refused after an edit."""
    prefill: bool | None = None
    """The last message may be the assistant's."""
    compacts: bool | None = None
    """The provider compacts a conversation when it is asked to (Messages and Responses alone)."""
    id_max: Annotated[int, Meta(ge=8, le=LARGEST)] | None = None
    """Characters of a call id."""
    id_pattern: str | None = None
    """What each character of a call id must match; letters a to f and digits must."""
    source: str = ""

    @property
    def facts(self) -> dict[str, Any]:
        """What this line says of the dialect, by the dialect's own names."""
        said = {name: getattr(self, field) for field, name in _FACTS.items()}
        said["end_user"] = None if self.prefill is None else not self.prefill
        return {name: value for name, value in said.items() if value is not None}


_FACTS = {
    "images": "max_images",
    "max_bytes": "max_bytes",
    "media": "media",
    "binds_thinking": "binds_thinking",
    "compacts": "compacts",
    "id_max": "id_max",
    "id_pattern": "id_pattern",
}
"""Fields of a line that are fields of a dialect."""
_FORM = frozenset({"media", "id_max", "id_pattern", "end_user"})
"""Those that say what form a request must have: somebody knows that server, and its requests are mended for it."""


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million tokens of the models that match.

    ``read`` and ``write`` are the input price times the multiples of the model's cache where they are left out.
    """

    match: Match
    input: Rate
    output: Rate
    read: Rate | None = None
    write: Rate | None = None
    source: str = ""

    def prices(self, rules: CacheRules) -> Prices:
        """Return all four prices, given how the cache works."""
        return Prices(
            self.input,
            self.output,
            self.input * rules.read if self.read is None else self.read,
            self.input * rules.write if self.write is None else self.write,
        )


class CacheLine(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one kind of cache; see ``CacheRules``. A ``lookback`` that is left out is no limit."""

    ttl: Tokens = 300
    minimum: Count = 1024
    write: Rate = 1.0
    read: Rate = 0.1
    lookback: Tokens | None = None
    automatic: bool = False
    step: Count = 0
    source: str = ""

    def rules(self) -> CacheRules:
        """Return the rules, without their source."""
        return CacheRules(self.ttl, self.minimum, self.write, self.read, self.lookback, self.automatic, self.step)


Line = TypeVar("Line", Model, Price)


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines about models, caches and prices, in the order in which they are asked."""

    model: tuple[Model, ...] = ()
    price: tuple[Price, ...] = ()
    cache: dict[str, CacheLine] = {}
    date: str = ""
    """When the tables were last compared with their sources."""

    def before(self, other: Catalog) -> Catalog:
        """Return both catalogues as one; this one is asked first."""
        return Catalog(
            (*self.model, *other.model),
            (*self.price, *other.price),
            {**other.cache, **self.cache},
            other.date or self.date,
        )

    def limits(self, model: str, window: int | None = None, asked_output: int | None = None) -> Limits:
        """Return the sizes of ``model``; a ``window`` of 1 or more overrides the catalogue, as the origin then says."""
        origin, size = told_window(("asked for", window), *self._window(model))
        capped, asked = _first(self.model, model, "max_output"), _first(self.model, model, "max_input")
        most = min(asked.max_input, size) if asked and asked.max_input else None
        return Limits(size, capped.max_output if capped else None, asked_output, most, origin)

    def _window(self, model: str) -> Iterator[tuple[str, int | None]]:
        """Yield what is known of the window of ``model``, with where that was found, then what is assumed."""
        known = _first(self.model, model, "window")
        if known is not None:
            yield f"catalog: {next(_patterns(known, model), '')}", known.window
        yield f"default: the catalog has no window for {model or 'an unnamed model'}", DEFAULT_WINDOW

    def rules(self, api: str, model: str) -> CacheRules:
        """Return how the cache of ``model`` works; on an API of another provider, what is usual there."""
        known = _first(self.model, model, "cache")
        native = known is not None and (known.api is None or _provider(known.api) == _provider(api))
        name = known.cache if known and native else _CACHES.get(_provider(api), "prefix")
        line = self.cache.get(name or "")
        return line.rules() if line else CacheRules()

    def dialect(self, api: str, model: str, *, trusting: bool = False) -> Dialect:
        """Return the rules of ``api`` for ``model``, with what the lines about it say otherwise.

        Lines about another provider's API, or another provider's server, say nothing here. ``trusting`` takes it that
        a server which nobody knows here is known to who writes its requests.
        """
        lines = [line for line in _matching(self.model, model) if not line.api or _provider(line.api) == _provider(api)]
        provider = next((line.provider for line in lines if line.provider), "")
        facts: dict[str, Any] = {}
        for line in lines:
            if line.provider in (None, provider):
                facts = line.facts | facts
        built = dialect(api, model, provider)
        built = trusted(built) if trusting else built
        if facts.keys() & _FORM:
            built = replace(built, as_written=False)
        return replace(built, **facts, id_min=min(built.id_min, facts.get("id_max", built.id_min))) if facts else built

    def prices(self, api: str, model: str) -> Prices:
        """Return the prices of ``model``; of one without a line, assumed, Sonnet 4.5's under its own cache's rules."""
        rules = self.rules(api, model)
        for line in _matching(self.price, model):
            return line.prices(rules)
        usual = next(_matching(self.price, DEFAULT_MODEL), None)
        if usual is None:
            return Prices(assumed=True)
        return replace(Price("", usual.input, usual.output).prices(rules), assumed=True)

    def prior(self, model: str) -> float:
        """Return the tokens of ``model`` for one estimated token, before any usage was reported."""
        known = _first(self.model, model, "prior")
        return known.prior if known and known.prior else UNKNOWN_PRIOR

    def api(self, model: str) -> str | None:
        """Return the API that ``model`` is usually called by, if it is known."""
        known = _first(self.model, model, "api")
        return known.api if known else None

    def family(self, model: str) -> str | None:
        """Return the family of ``model``, if it is known."""
        known = _first(self.model, model, "family")
        return known.family if known else None


def _matching(lines: Iterable[Line], model: str) -> Iterator[Line]:
    """Yield the lines about ``model``, in order."""
    return (line for line in lines if next(_patterns(line, model), None) is not None)


def _patterns(line: Model | Price, model: str) -> Iterator[str]:
    """Yield the patterns of ``line`` that ``model`` has."""
    patterns = (line.match,) if isinstance(line.match, str) else line.match
    return (pattern for pattern in patterns if fnmatchcase(model.lower(), pattern.lower()))


def _first(lines: Iterable[Model], model: str, field: str) -> Model | None:
    """Return the first line about ``model`` that knows ``field``."""
    return next((line for line in _matching(lines, model) if getattr(line, field) is not None), None)


def _provider(api: str) -> str:
    return api.split("-", 1)[0]


def dialect(api: str, model: str, provider: str = "") -> Dialect:
    """Return the rules of ``api`` for ``model``, catalogue aside; the strictest ones for an API that nobody speaks.

    ``provider`` says whose server speaks Chat Completions where the model's name does not.
    """
    if api == "openai-chat":
        return chat_dialect(model, provider)
    return _DIALECTS[api](model) if api in _DIALECTS else Dialect(api)
