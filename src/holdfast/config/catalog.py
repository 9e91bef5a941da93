"""The catalogue: limits, caches and prices of models, from the tables we ship and from ``holdfast.toml``.

Facts about a model are looked up field by field, so a line may state a single one; of prices, the first line that
matches counts::

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

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from holdfast.planning.budget import DEFAULT_WINDOW, choose_window
from holdfast.planning.settings import MAX_SETTING_VALUE
from holdfast.providers.dialects.registry import PROVIDER_NAMES, has_unknown_message_rules
from holdfast.providers.dialects.request_provider import (
    RequestProvider,
    check_provider_name,
    find_request_provider,
)
from holdfast.providers.registry import API_NAMES, API_SPECS, get_api_dialect, relax_for_unknown_server
from holdfast.state.calibration.calibration import MIN_WINDOW_LIMIT
from holdfast.state.dialect import Dialect
from holdfast.state.target import CacheRules, ModelLimits, Prices

DEFAULT_MODEL = "claude-sonnet-4-6"
"""The model whose prices replay uses if no model is named, and that are assumed for models without prices."""
LONG_WINDOW_BETA = "context-1m-2025-08-07"
"""The beta with which a request on the Messages API asks for ``LONG_WINDOW``."""
LONG_WINDOW = 1_000_000
"""Tokens of the long window of a model that no line knows."""
UNKNOWN_MODEL_RATIO = 1.1
"""Real tokens for an estimated one of a model that no line matches.

Measured: Claude's models 1.22 to 1.3, OpenAI's 1.0; between these, so that a first request is not planned too large.
"""

_DEFAULT_CACHES = {"anthropic": "anthropic-1024", "openai": "openai", "gemini": "gemini"}
"""Cache rules by the vendor of the API, for models that are unknown or not that vendor's."""

if TYPE_CHECKING:
    ApiName: TypeAlias = str
    ProviderName: TypeAlias = str
else:
    # So that a file with another name is refused with the list of them.
    ApiName = Literal[API_NAMES]
    ProviderName = Literal[PROVIDER_NAMES]
NamePattern: TypeAlias = Annotated[str, Meta(min_length=1)]
NamePatterns: TypeAlias = NamePattern | Annotated[tuple[NamePattern, ...], Meta(min_length=1)]
"""Patterns for the name of a model, ignoring case: one or several."""
PositiveCount = Annotated[int, Meta(ge=1, le=MAX_SETTING_VALUE)]
NonNegativeCount = Annotated[int, Meta(ge=0, le=MAX_SETTING_VALUE)]
NonNegativeRate = Annotated[float, Meta(ge=0, le=MAX_SETTING_VALUE)]
"""A price in dollars for a million tokens, or a multiple of one."""


class CatalogModel(Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about the models that match. A field that is left out is looked for in the next line that matches."""

    match: NamePatterns
    api: ApiName | None = None
    provider: ProviderName | None = None
    """The provider that serves the model, one of ``PROVIDER_NAMES``: ``openai``, ``mistral``, …"""
    window: Annotated[int, Meta(ge=MIN_WINDOW_LIMIT, le=MAX_SETTING_VALUE)] | None = None
    """Tokens of prompt and answer together. A number under 1,024 is refused: it would be a limit of something else."""
    long_window: Annotated[int, Meta(ge=MIN_WINDOW_LIMIT, le=MAX_SETTING_VALUE)] | None = None
    """The window of a request that asks for a long one (``LONG_WINDOW_BETA``); left out if the model does not honour
    that. It counts only in the line that also has the ``window``."""
    max_input: PositiveCount | None = None
    """Tokens of a prompt, if the provider limits them apart from the window."""
    max_output: PositiveCount | None = None
    cache: str | None = None
    """Name of a ``[cache.…]`` table."""
    prior: Annotated[float, Meta(ge=0.1, le=10)] | None = None
    """Real tokens for an estimated one. No tokenizer is ten times as fine or as coarse as another."""
    family: str | None = None
    images: NonNegativeCount | None = None
    """Images that one request may contain."""
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_SETTING_VALUE)] | None = None
    """Bytes of a request body."""
    media: tuple[str, ...] | None = None
    """MIME types that may be sent; an empty list means any."""
    binds_thinking: bool | None = None
    """Whether thinking is signed over everything before it and refused after an edit."""
    prefill: bool | None = None
    """Whether the last message may be the assistant's."""
    compacts: bool | None = None
    """Whether the provider compacts a conversation on request (Messages and Responses only)."""
    id_max: Annotated[int, Meta(ge=8, le=MAX_SETTING_VALUE)] | None = None
    """Maximal length of a call id."""
    id_pattern: str | None = None
    """Regular expression for each character of a call id; it must accept digits and the letters a to f."""
    source: str = ""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for an unknown provider."""
        check_provider_name(self.provider or "")

    @property
    def dialect_facts(self) -> dict[str, Any]:
        """The facts of this line that are fields of a ``Dialect``, under its names."""
        facts = {}
        for field, name in _DIALECT_FIELDS.items():
            value = getattr(self, field)
            if value is not None:
                facts[name] = value
        if self.prefill is not None:
            facts["must_end_with_user"] = not self.prefill
        return facts


_DIALECT_FIELDS = {
    "images": "max_images",
    "max_bytes": "max_bytes",
    "media": "media_types",
    "binds_thinking": "binds_thinking",
    "compacts": "supports_compaction",
    "id_max": "id_max",
    "id_pattern": "id_character_pattern",
}
"""Fields of a dialect, by the fields of a line with the same meaning."""
_REQUEST_FORM_FIELDS = frozenset({"media_types", "id_max", "id_character_pattern", "must_end_with_user"})
"""Facts about the form of requests, as fields of a ``Dialect``.

``get_dialect`` with ``trusting`` keeps a client's messages as they are, because we do not know the rules of its
provider. A line that states one of these facts is such a rule, and it can only take effect if the messages are
normalized. So ``keeps_client_content`` is switched off then.
"""


class CatalogPrices(Struct, frozen=True, forbid_unknown_fields=True):
    """Prices in dollars for a million tokens of the models that match.

    If ``read`` or ``write`` is left out, it is the input price times the factor of the model's cache.
    """

    match: NamePatterns
    input: NonNegativeRate
    output: NonNegativeRate
    read: NonNegativeRate | None = None
    write: NonNegativeRate | None = None
    source: str = ""

    def resolve_prices(self, rules: CacheRules) -> Prices:
        """Return all four prices, given the rules of the model's cache."""
        read = self.input * rules.read_factor if self.read is None else self.read
        write = self.input * rules.write_factor if self.write is None else self.write
        return Prices(self.input, self.output, read, write)


class CatalogCacheRules(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one kind of cache; see ``CacheRules``. Without ``lookback`` there is no limit."""

    ttl: PositiveCount = 300
    minimum: NonNegativeCount = 1024
    write: NonNegativeRate = 1.0
    read: NonNegativeRate = 0.1
    lookback: PositiveCount | None = None
    automatic: bool = False
    step: NonNegativeCount = 0
    source: str = ""

    def to_cache_rules(self) -> CacheRules:
        """Return the rules without their source."""
        return CacheRules(
            self.ttl,
            self.minimum,
            self.write,
            self.read,
            self.lookback,
            self.automatic,
            self.step,
        )


CatalogLine = TypeVar("CatalogLine", CatalogModel, CatalogPrices)


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines about models, caches and prices, in the order in which they are searched."""

    model: tuple[CatalogModel, ...] = ()
    price: tuple[CatalogPrices, ...] = ()
    cache: dict[str, CatalogCacheRules] = {}
    date: str = ""
    """When the tables were last compared with their sources."""

    def merge_before(self, fallback: Catalog) -> Catalog:
        """Return both catalogues as one, in which this one is searched first."""
        return Catalog(
            model=(*self.model, *fallback.model),
            price=(*self.price, *fallback.price),
            cache={**fallback.cache, **self.cache},
            date=fallback.date or self.date,
        )

    def get_limits(
        self,
        model: str,
        window: int | None = None,
        asked_output: int | None = None,
    ) -> ModelLimits:
        """Return the limits of ``model``. A ``window`` of 1 or more overrides the catalogue.

        ``ModelLimits.window_source`` says where the window came from.
        """
        # Each limit comes from the first line that states it, which need not be the same one.
        source, size = choose_window(("asked for", window), *self._iter_window_candidates(model))
        output_line = _find_line_with(self.model, model, "max_output")
        input_line = _find_line_with(self.model, model, "max_input")
        max_output = output_line.max_output if output_line else None
        max_input = None
        if input_line and input_line.max_input:
            # A smaller window, asked for or configured, limits the prompt too.
            max_input = min(input_line.max_input, size)
        return ModelLimits(size, max_output, asked_output, max_input, source)

    def get_long_window(self, model: str) -> int:
        """Return the window of ``model`` for a request that asks for a long one.

        The line with its window says so: one without ``long_window`` is about a model that has no other.
        """
        line = _find_line_with(self.model, model, "window")
        if line is None or line.window is None:
            return LONG_WINDOW
        return line.long_window or line.window

    def _iter_window_candidates(self, model: str) -> Iterator[tuple[str, int | None]]:
        """Yield sources and sizes for the window of ``model``: the catalogue's if it has one, then the default."""
        model_line = _find_line_with(self.model, model, "window")
        if model_line is not None:
            pattern = next(_iter_matching_patterns(model_line, model), "")
            yield f"catalog: {pattern}", model_line.window
        yield f"default: the catalog has no window for {model or 'an unnamed model'}", DEFAULT_WINDOW

    def get_cache_rules(self, api: str, model: str) -> CacheRules:
        """Return the cache rules of ``model``, or those that are usual for ``api`` if it is not that API's model."""
        vendor = _get_api_vendor(api)
        name = _DEFAULT_CACHES.get(vendor, "prefix")
        line = _find_line_with(self.model, model, "cache")
        if line is not None and line.cache is not None:
            is_own_api = line.api is None or _get_api_vendor(line.api) == vendor
            if is_own_api:
                name = line.cache
        rules = self.cache.get(name)
        return rules.to_cache_rules() if rules else CacheRules()

    def find_provider(
        self,
        api: str,
        model: str,
        *,
        named: str = "",
        address: str = "",
        fields: Mapping[str, Raw] = MappingProxyType({}),
    ) -> RequestProvider:
        """Find who serves a request for ``model`` over ``api``; see ``find_request_provider`` for the arguments.

        What this catalogue says is the provider in the first line for the model that names one.
        """
        # Few lines name a provider, and this is asked several times a request, so the others are not matched at all.
        lines = [line for line in self.model if line.provider]
        line = next(_iter_lines_for_api(lines, api, model), None)
        configured = line.provider or "" if line else ""
        return find_request_provider(api, model, named=named, address=address, configured=configured, fields=fields)

    def get_dialect(
        self, api: str, model: str, *, trusting: bool = False, provider: RequestProvider | None = None
    ) -> Dialect:
        """Return the rules of ``api`` for ``model``: the API's own, changed by the facts of matching lines.

        ``provider`` is who serves the model; None if only this catalogue or the model's name can tell. Lines about
        another vendor's API, and those that name another provider, are ignored. ``trusting`` is for a client's own
        messages to a provider whose rules are unknown: they are assumed to be valid there and are sent as the client
        wrote them (``relax_for_unknown_server``), unless a line states what form that provider wants
        (``_REQUEST_FORM_FIELDS``).
        """
        if provider is None:
            provider = self.find_provider(api, model)
        facts: dict[str, Any] = {}
        for line in _iter_lines_for_api(self.model, api, model):
            # Another provider may have other rules for the same model.
            if line.provider in (None, provider.name):
                facts = line.dialect_facts | facts  # an earlier line wins
        dialect = get_api_dialect(api, model, provider)
        if trusting and has_unknown_message_rules(dialect.provider):
            dialect = replace(
                relax_for_unknown_server(dialect),
                provider=dialect.provider,
                provider_told_by=dialect.provider_told_by,
            )
        if facts.keys() & _REQUEST_FORM_FIELDS:
            dialect = replace(dialect, keeps_client_content=False)
        if not facts:
            return dialect
        # A line may limit ids to fewer characters than the API's minimum length; the minimum is then lowered.
        id_min = min(dialect.id_min, facts.get("id_max", dialect.id_min))
        return replace(dialect, **facts, id_min=id_min)

    def get_prices(self, api: str, model: str) -> Prices:
        """Return the prices of ``model``, or those of ``DEFAULT_MODEL``; cache rules are always the model's own."""
        rules = self.get_cache_rules(api, model)
        line = next(_iter_matching_lines(self.price, model), None)
        if line is not None:
            return line.resolve_prices(rules)
        default_line = next(_iter_matching_lines(self.price, DEFAULT_MODEL), None)
        if default_line is None:
            return Prices(is_assumed=True)
        assumed_line = CatalogPrices("", default_line.input, default_line.output)
        return replace(assumed_line.resolve_prices(rules), is_assumed=True)

    def get_prior_ratio(self, model: str) -> float:
        """Return the real tokens of ``model`` for an estimated one, before any usage was reported."""
        model_line = _find_line_with(self.model, model, "prior")
        return model_line.prior if model_line and model_line.prior else UNKNOWN_MODEL_RATIO

    def find_api(self, model: str) -> str | None:
        """Return the API by which ``model`` is usually called, or None if it is unknown."""
        model_line = _find_line_with(self.model, model, "api")
        return model_line.api if model_line else None

    def find_family(self, model: str) -> str | None:
        """Return the family of ``model``, or None if it is unknown."""
        model_line = _find_line_with(self.model, model, "family")
        return model_line.family if model_line else None


def _iter_lines_for_api(lines: Iterable[CatalogModel], api: str, model: str) -> Iterator[CatalogModel]:
    """Yield the lines that match ``model``, in order, without those about another vendor's API.

    A gateway may offer the model by another API, about which such a line says nothing.
    """
    vendor = _get_api_vendor(api)
    for line in _iter_matching_lines(lines, model):
        if not line.api or _get_api_vendor(line.api) == vendor:
            yield line


def _iter_matching_lines(lines: Iterable[CatalogLine], model: str) -> Iterator[CatalogLine]:
    """Yield the lines that match ``model``, in order."""
    for line in lines:
        if any(True for _ in _iter_matching_patterns(line, model)):
            yield line


def _iter_matching_patterns(line: CatalogModel | CatalogPrices, model: str) -> Iterator[str]:
    """Yield the patterns of ``line`` that match ``model``."""
    patterns = (line.match,) if isinstance(line.match, str) else line.match
    for pattern in patterns:
        # ``fnmatch`` would ignore case on Windows only.
        if fnmatchcase(model.lower(), pattern.lower()):
            yield pattern


def _find_line_with(lines: Iterable[CatalogModel], model: str, field: str) -> CatalogModel | None:
    """Return the first line that matches ``model`` and states ``field``, or None."""
    for line in _iter_matching_lines(lines, model):
        if getattr(line, field) is not None:
            return line
    return None


def _get_api_vendor(api: str) -> str:
    """Return who defined ``api`` (``anthropic``, ``openai``, ``gemini``); any provider may serve it."""
    if api in API_SPECS:
        return API_SPECS[api].endpoints.provider
    return api.split("-", 1)[0]
