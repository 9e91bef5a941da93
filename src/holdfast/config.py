"""The catalogue: what is known of models, caches and prices, from our tables and from ``holdfast.toml``.

``holdfast.toml`` in the project comes before the user's, which comes before the tables that are shipped. Values are
looked up one by one, so a line may say one thing only::

    [[model]]
    match = "qwen3-coder*"
    window = 32_768

    [[price]]
    match = "qwen3-coder*"
    input = 0.0

    [cache.mine]
    ttl = 3600
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from platformdirs import user_config_path

from holdfast.errors import ConfigError
from holdfast.model.dialect import Dialect
from holdfast.model.entries import Frame
from holdfast.model.target import CacheRules, Limits, Prices, Target

DEFAULT_MODEL = "claude-sonnet-4-5"
"""The model whose prices replay takes when none is named (METRICS, "Cost and cache")."""
UNKNOWN_WINDOW = 200_000
"""Tokens assumed of a model that no line matches: the window of most current models, or less."""
UNKNOWN_PRIOR = 1.1
"""Tokens for one estimated token of a model that no line matches (the reference's prior for all others)."""
FILE = "holdfast.toml"

_MODULES = {"anthropic": "anthropic", "openai-chat": "openai_chat"}
"""The module of ``holdfast.wire`` for each API whose dialect is known."""
_CACHES = {"anthropic": "anthropic-1024", "openai-chat": "openai", "gemini": "gemini"}
"""The cache assumed of an API when the model is not known."""

Tokens = Annotated[int, Meta(ge=1)]
Dollars = Annotated[float, Meta(ge=0)]
T = TypeVar("T")


class Model(Struct, frozen=True, forbid_unknown_fields=True):
    """One line about models; a field that is left out is looked for in the next line that matches."""

    match: str | tuple[str, ...]
    api: str | None = None
    window: Tokens | None = None
    max_output: Tokens | None = None
    cache: str | None = None
    """Name of a ``[cache.…]`` table."""
    prior: Annotated[float, Meta(gt=0)] | None = None
    family: str | None = None
    source: str = ""


class Price(Struct, frozen=True, forbid_unknown_fields=True):
    """Dollars for a million tokens of the models that match; ``write`` is the input price where it is left out."""

    match: str | tuple[str, ...]
    input: Dollars | None = None
    read: Dollars | None = None
    write: Dollars | None = None
    output: Dollars | None = None
    source: str = ""


class CacheLine(Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of one kind of cache; see ``CacheRules``. A ``lookback`` that is left out is no limit."""

    ttl: Tokens = 300
    minimum: Annotated[int, Meta(ge=0)] = 1024
    write: Dollars = 1.0
    read: Dollars = 0.1
    lookback: Tokens | None = None
    automatic: bool = False
    step: Annotated[int, Meta(ge=0)] = 0
    source: str = ""

    @property
    def rules(self) -> CacheRules:
        """The rules, without their source."""
        return CacheRules(self.ttl, self.minimum, self.write, self.read, self.lookback, self.automatic, self.step)


class Catalog(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines about models, caches and prices; of several that match, the first that knows a value gives it."""

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
        """Return the sizes of ``model``; ``window`` overrides the catalogue. The origin says where it came from."""
        known = _first(self.model, model, "window")
        origin = (
            "asked for"
            if window is not None
            else f"catalog, {known.match if isinstance(known.match, str) else known.match[0]}"
            if known
            else f"default: no line of the catalog gives the window of {model or 'an unnamed model'}"
        )
        size = window or (known.window if known else None) or UNKNOWN_WINDOW
        return Limits(size, _value(self.model, model, "max_output"), asked_output, origin)

    def rules(self, api: str, model: str) -> CacheRules:
        """Return how the cache of ``model`` works, or else what is usual on ``api``."""
        name = _value(self.model, model, "cache") or _CACHES.get(api, "prefix")
        return self.cache[name].rules

    def prices(self, model: str) -> Prices:
        """Return the prices of ``model``; those of Claude Sonnet 4.5 when no line matches."""
        name = model if _first(self.price, model, "input") else DEFAULT_MODEL
        values = {field: _value(self.price, name, field) for field in ("input", "output", "read", "write")}
        each = values["input"] or 0.0
        return Prices(**{field: each if value is None else value for field, value in values.items()})

    def prior(self, model: str) -> float:
        """Return the tokens of ``model`` for one estimated token, before any usage was reported."""
        return float(_value(self.model, model, "prior") or UNKNOWN_PRIOR)

    def api(self, model: str) -> str | None:
        """Return the API that ``model`` is usually called by, if it is known."""
        return _value(self.model, model, "api")

    def family(self, model: str) -> str | None:
        """Return the family of ``model``, if it is known."""
        return _value(self.model, model, "family")


def _matches(lines: tuple[T, ...], model: str) -> Iterator[T]:
    name = model.lower()
    for line in lines:
        patterns = line.match  # type: ignore[attr-defined]
        if any(fnmatchcase(name, one) for one in ((patterns,) if isinstance(patterns, str) else patterns)):
            yield line


def _first(lines: tuple[T, ...], model: str, field: str) -> T | None:
    """Return the first line about ``model`` that knows ``field``."""
    return next((line for line in _matches(lines, model) if getattr(line, field) is not None), None)


def _value(lines: tuple[Any, ...], model: str, field: str) -> Any:
    line = _first(lines, model, field)
    return None if line is None else getattr(line, field)


def target(
    api: str,
    model: str,
    *,
    window: int | None = None,
    frame: Frame = Frame(),  # noqa: B008 - frozen
    asked_output: int | None = None,
    catalog: Catalog | None = None,
) -> Target:
    """Return all that is known of requests to ``model`` by ``api``.

    ``window`` in tokens overrides the catalogue; an unknown model gets 200,000 and an origin that says so, an unknown
    API the strictest dialect. Without ``catalog`` the shipped one is asked.
    """
    known = catalog or shipped()
    return Target(
        api=api,
        model=model,
        dialect=dialect(api, model),
        limits=known.limits(model, window, asked_output),
        frame=frame,
        cache=known.rules(api, model),
        prices=known.prices(model),
        prior=known.prior(model),
    )


def dialect(api: str, model: str) -> Dialect:
    """Return the rules of ``api`` for ``model``; the strictest ones for an API without a module of its own."""
    if api not in _MODULES:
        return Dialect(api)
    found: Dialect = import_module(f"holdfast.wire.{_MODULES[api]}").dialect(model)
    return found


@cache
def shipped() -> Catalog:
    """Return the tables that come with the package."""
    data = files("holdfast.data")
    models, prices = (parse(data.joinpath(name).read_text("utf-8"), name) for name in ("catalog.toml", "prices.toml"))
    return _checked(models.before(prices), "catalog.toml")


def load(project: Path | None = None, user: Path | None = None) -> Catalog:
    """Return the catalogue in force: the project's ``holdfast.toml``, the user's, and the shipped tables.

    ``project`` and ``user`` are folders (the working folder and the platform's configuration folder by default); a
    file that is not there says nothing. Raises ``ConfigError`` for one that cannot be read or says something unknown.
    """
    folders = (project or Path(), user or user_config_path("holdfast", appauthor=False))
    found = shipped()
    for folder in reversed(folders):
        path = folder / FILE
        if path.is_file():
            found = _checked(parse(_read(path), str(path)).before(found), str(path))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as UTF-8 text ({error}); repair or remove it"
        raise ConfigError(msg) from error


def parse(text: str, name: str) -> Catalog:
    """Return the catalogue that TOML ``text`` says; ``name`` is the file, for errors.

    Raises ``ConfigError`` that names the key and what is allowed there.
    """
    try:
        return msgspec.convert(tomllib.loads(text), Catalog)
    except tomllib.TOMLDecodeError as error:
        msg = f"{name}: not TOML: {error}; correct the line"
        raise ConfigError(msg) from error
    except msgspec.ValidationError as error:
        msg = f"{name}: {error}; allowed there: {', '.join(_allowed(str(error)))}"
        raise ConfigError(msg) from error


_PLACES: dict[str, type[Struct]] = {"$.model": Model, "$.price": Price, "$.cache": CacheLine}


def _allowed(error: str) -> tuple[str, ...]:
    """Return the keys that may stand where ``error`` points."""
    place = re.search(r"`(\$\.\w+)\[", error)
    kind = _PLACES.get(place.group(1), Catalog) if place else Catalog
    return kind.__struct_fields__


def _checked(catalog: Catalog, name: str) -> Catalog:
    for line in catalog.model:
        if line.cache is not None and line.cache not in catalog.cache:
            known = ", ".join(sorted(catalog.cache))
            msg = f"{name}: model {line.match!r} names the cache {line.cache!r}, which no [cache.…] table defines; known: {known}"
            raise ConfigError(msg)
    return catalog
