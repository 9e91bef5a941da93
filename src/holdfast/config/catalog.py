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

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.planning.budget import DEFAULT_WINDOW, choose_window
from holdfast.planning.settings import MAX_SETTING_VALUE
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_dialect, relax_for_unknown_server
from holdfast.state.calibration.calibration import MIN_WINDOW_LIMIT
from holdfast.state.dialect import Dialect
from holdfast.state.target import CacheRules, ModelLimits, Prices

DEFAULT_MODEL = "claude-sonnet-4-5"
"""The model whose prices replay takes when none is named (METRICS, "Cost and cache")."""
UNKNOWN_MODEL_RATIO = 1.1
"""Tokens for one estimated token of a model that no line matches (the reference's prior for all others)."""

_DEFAULT_CACHES = {"anthropic": "anthropic-1024", "openai": "openai", "gemini": "gemini"}
"""The cache assumed of a provider's API when the model is not known, or another provider's."""

if TYPE_CHECKING:
    ApiName: TypeAlias = str
else:
    ApiName = Literal[API_NAMES]  # so that a file with another name is refused with the list of them
NamePattern: TypeAlias = Annotated[str, Meta(min_length=1)]
NamePatterns: TypeAlias = NamePattern | Annotated[tuple[NamePattern, ...], Meta(min_length=1)]
"""What the name of a model looks like, the case of its letters aside: one pattern, or several."""
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_SETTING_VALUE)]
NonNegativeCount = Annotated[int, Meta(ge=0, le=MAX_SETTING_VALUE)]
NonNegativeRate = Annotated[float, Meta(ge=0, le=MAX_SETTING_VALUE)]
"""Dollars for a million tokens, or a multiple of them."""


class CatalogModel(Struct, frozen=True, forbid_unknown_fields=True):
    """One line about models; a field that is left out is looked for in the next line that matches."""

    match: NamePatterns
    api: ApiName | None = None
    provider: str | None = None
    """Whose server speaks Chat Completions: ``openai``, ``mistral``, or another, which gets the strictest rules."""
    window: Annotated[int, Meta(ge=MIN_WINDOW_LIMIT, le=MAX_SETTING_VALUE)] | None = None
    """Tokens that prompt and answer may have together; under 1,024 it is a limit of something else."""
    max_input: PositiveCount | None = None
    """Tokens that a prompt may have, where the provider says that apart from the window."""
    max_output: PositiveCount | None = None
    cache: str | None = None
    """Name of a ``[cache.…]`` table."""
    prior: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    """Tokens for one estimated token. [H] No tokenizer is ten times as fine or as coarse as another."""
    family: str | None = None
    images: NonNegativeCount | None = None
    """Images that one request may hold."""
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_SETTING_VALUE)] | None = None
    """Bytes of a request body."""
    media: tuple[str, ...] | None = None
    """MIME types that may be sent; an empty list means any."""
    binds_thinking: bool | None = None
    """Thinking is signed over everything before it, and refused after an edit."""
    prefill: bool | None = None
    """The last message may be the assistant's."""
    compacts: bool | None = None
    """The provider compacts a conversation when it is asked to (Messages and Responses alone)."""
    id_max: Annotated[int, Meta(ge=8, le=MAX_SETTING_VALUE)] | None = None
    """Characters of a call id."""
    id_pattern: str | None = None
    """What each character of a call id must match; letters a to f and digits must."""
    source: str = ""

    @property
    def dialect_facts(self) -> dict[str, Any]:
        """What this line says of the dialect, by the dialect's own names."""
        values = {name: getattr(self, field) for field, name in _DIALECT_FIELDS.items()}
        values["must_end_with_user"] = None if self.prefill is None else not self.prefill
        return {name: value for name, value in values.items() if value is not None}


_DIALECT_FIELDS = {
    "images": "max_images",
    "max_bytes": "max_bytes",
    "media": "media_types",
    "binds_thinking": "binds_thinking",
    "compacts": "supports_compaction",
    "id_max": "id_max",
    "id_pattern": "id_pattern",
}
"""Fields of a line that are fields of a dialect."""
_REQUEST_FORM_FIELDS = frozenset({"media_types", "id_max", "id_pattern", "must_end_with_user"})
"""Those that say what form a request must have: somebody knows that server, and its requests are mended for it."""


class CatalogPrices(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million tokens of the models that match.

    ``read`` and ``write`` are the input price times the multiples of the model's cache where they are left out.
    """

    match: NamePatterns
    input: NonNegativeRate
    output: NonNegativeRate
    read: NonNegativeRate | None = None
    write: NonNegativeRate | None = None
    source: str = ""

    def resolve_prices(self, rules: CacheRules) -> Prices:
        """Return all four prices, given how the cache works."""
        return Prices(
            self.input,
            self.output,
            self.input * rules.read_factor if self.read is None else self.read,
            self.input * rules.write_factor if self.write is None else self.write,
        )


class CatalogCacheRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one kind of cache; see ``CacheRules``. A ``lookback`` that is left out is no limit."""

    ttl: PositiveCount = 300
    minimum: NonNegativeCount = 1024
    write: NonNegativeRate = 1.0
    read: NonNegativeRate = 0.1
    lookback: PositiveCount | None = None
    automatic: bool = False
    step: NonNegativeCount = 0
    source: str = ""

    def to_cache_rules(self) -> CacheRules:
        """Return the rules, without their source."""
        return CacheRules(self.ttl, self.minimum, self.write, self.read, self.lookback, self.automatic, self.step)


CatalogLine = TypeVar("CatalogLine", CatalogModel, CatalogPrices)


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines about models, caches and prices, in the order in which they are asked."""

    model: tuple[CatalogModel, ...] = ()
    price: tuple[CatalogPrices, ...] = ()
    cache: dict[str, CatalogCacheRules] = {}
    date: str = ""
    """When the tables were last compared with their sources."""

    def merge_before(self, fallback: Catalog) -> Catalog:
        """Return both catalogues as one; this one is asked first."""
        return Catalog(
            (*self.model, *fallback.model),
            (*self.price, *fallback.price),
            {**fallback.cache, **self.cache},
            fallback.date or self.date,
        )

    def get_limits(self, model: str, window: int | None = None, asked_output: int | None = None) -> ModelLimits:
        """Return the sizes of ``model``; a ``window`` of 1 or more overrides the catalogue, as the origin then says."""
        origin, size = choose_window(("asked for", window), *self._iter_window_candidates(model))
        output_line, input_line = (
            _find_line_with(self.model, model, "max_output"),
            _find_line_with(self.model, model, "max_input"),
        )
        max_input = min(input_line.max_input, size) if input_line and input_line.max_input else None
        return ModelLimits(size, output_line.max_output if output_line else None, asked_output, max_input, origin)

    def _iter_window_candidates(self, model: str) -> Iterator[tuple[str, int | None]]:
        """Yield what is known of the window of ``model``, with where that was found, then what is assumed."""
        model_line = _find_line_with(self.model, model, "window")
        if model_line is not None:
            yield f"catalog: {next(_iter_matching_patterns(model_line, model), '')}", model_line.window
        yield f"default: the catalog has no window for {model or 'an unnamed model'}", DEFAULT_WINDOW

    def get_cache_rules(self, api: str, model: str) -> CacheRules:
        """Return how the cache of ``model`` works; on an API of another provider, what is usual there."""
        model_line = _find_line_with(self.model, model, "cache")
        native = model_line is not None and (
            model_line.api is None or _get_provider(model_line.api) == _get_provider(api)
        )
        name = model_line.cache if model_line and native else _DEFAULT_CACHES.get(_get_provider(api), "prefix")
        line = self.cache.get(name or "")
        return line.to_cache_rules() if line else CacheRules()

    def get_dialect(self, api: str, model: str, *, trusting: bool = False) -> Dialect:
        """Return the rules of ``api`` for ``model``, with what the lines about it say otherwise.

        Lines about another provider's API, or another provider's server, say nothing here. ``trusting`` takes it that
        a server which nobody knows here is known to who writes its requests.
        """
        lines = [
            line
            for line in _iter_matching_lines(self.model, model)
            if not line.api or _get_provider(line.api) == _get_provider(api)
        ]
        provider = next((line.provider for line in lines if line.provider), "")
        facts: dict[str, Any] = {}
        for line in lines:
            if line.provider in (None, provider):
                facts = line.dialect_facts | facts
        model_dialect = get_api_dialect(api, model, provider)
        model_dialect = relax_for_unknown_server(model_dialect) if trusting else model_dialect
        if facts.keys() & _REQUEST_FORM_FIELDS:
            model_dialect = replace(model_dialect, keeps_client_content=False)
        return (
            replace(model_dialect, **facts, id_min=min(model_dialect.id_min, facts.get("id_max", model_dialect.id_min)))
            if facts
            else model_dialect
        )

    def get_prices(self, api: str, model: str) -> Prices:
        """Return the prices of ``model``; of one without a line, assumed, Sonnet 4.5's under its own cache's rules."""
        rules = self.get_cache_rules(api, model)
        for line in _iter_matching_lines(self.price, model):
            return line.resolve_prices(rules)
        usual = next(_iter_matching_lines(self.price, DEFAULT_MODEL), None)
        if usual is None:
            return Prices(is_assumed=True)
        return replace(CatalogPrices("", usual.input, usual.output).resolve_prices(rules), is_assumed=True)

    def get_prior_ratio(self, model: str) -> float:
        """Return the tokens of ``model`` for one estimated token, before any usage was reported."""
        model_line = _find_line_with(self.model, model, "prior")
        return model_line.prior if model_line and model_line.prior else UNKNOWN_MODEL_RATIO

    def find_api(self, model: str) -> str | None:
        """Return the API that ``model`` is usually called by, if it is known."""
        model_line = _find_line_with(self.model, model, "api")
        return model_line.api if model_line else None

    def find_family(self, model: str) -> str | None:
        """Return the family of ``model``, if it is known."""
        model_line = _find_line_with(self.model, model, "family")
        return model_line.family if model_line else None


def _iter_matching_lines(lines: Iterable[CatalogLine], model: str) -> Iterator[CatalogLine]:
    """Yield the lines about ``model``, in order."""
    return (line for line in lines if next(_iter_matching_patterns(line, model), None) is not None)


def _iter_matching_patterns(line: CatalogModel | CatalogPrices, model: str) -> Iterator[str]:
    """Yield the patterns of ``line`` that ``model`` has."""
    patterns = (line.match,) if isinstance(line.match, str) else line.match
    return (pattern for pattern in patterns if fnmatchcase(model.lower(), pattern.lower()))


def _find_line_with(lines: Iterable[CatalogModel], model: str, field: str) -> CatalogModel | None:
    """Return the first line about ``model`` that knows ``field``."""
    return next((line for line in _iter_matching_lines(lines, model) if getattr(line, field) is not None), None)


def _get_provider(api: str) -> str:
    return API_SPECS[api].endpoints.provider if api in API_SPECS else api.split("-", 1)[0]
