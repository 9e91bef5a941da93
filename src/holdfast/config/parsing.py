"""The text of one ``holdfast.toml`` becomes values, or an error that names the key and what is allowed there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args

import msgspec
from msgspec import Struct

from holdfast.config.catalog import Api, CacheLine, Catalog, Model, Price
from holdfast.config.proxy import proxy_table
from holdfast.config.tables import Override, StoreLimits, overrides, store_limits
from holdfast.errors import ConfigError
from holdfast.state.codec.reading import convert

_OURS = ("policy", "store", "proxy")
"""Tables of the file that are no part of the catalogue."""
DIGITS = 300
"""[H] Digits of a whole number at most: it still has a float, and can be shown."""
_PLACES: dict[str, type[Struct]] = {"$.model": Model, "$.price": Price, "$.cache": CacheLine}


class Told(Struct, frozen=True):
    """What one file says."""

    catalog: Catalog = Catalog()
    overrides: tuple[Override, ...] = ()
    store: StoreLimits = StoreLimits()
    proxy: dict[str, Any] = {}


def parse(text: str, name: str) -> Catalog:
    """Return the catalogue that TOML ``text`` says; ``name`` is the file, for errors.

    Raises ``ConfigError`` that names the key and what is allowed there, in its other tables too.
    """
    return told(text, name).catalog


def told(text: str, name: str) -> Told:
    """Return all that TOML ``text`` says; ``ConfigError`` names the file, the key and what is allowed there."""
    tables = _tables(text, name)
    catalog = _catalog({key: table for key, table in tables.items() if key not in _OURS}, name)
    return Told(
        catalog,
        overrides(tables.get("policy", {}), name),
        store_limits(tables.get("store", {}), name),
        proxy_table(tables.get("proxy", {}), name),
    )


def _tables(text: str, name: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        msg = f"{name}: not TOML: {error}; correct the line"
        raise ConfigError(msg) from error
    except ValueError as error:  # Python makes no number of thousands of digits
        msg = f"{name}: not TOML: a whole number has more than {DIGITS} digits; give a smaller one"
        raise ConfigError(msg) from error
    if key := _too_large(tables):
        msg = f"{name}: {key[:200]} is a whole number of more than {DIGITS} digits; give a smaller one"
        raise ConfigError(msg)
    return tables


def _too_large(value: object, place: str = "") -> str:
    """Return the place of a whole number that is too large for anything, or nothing."""
    if isinstance(value, int):
        return place if abs(value) >= 10**DIGITS else ""
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        inner = ((f"{place}.{key}".lstrip("."), one) for key, one in value.items())
    elif isinstance(value, list):
        inner = ((f"{place}[{index}]", one) for index, one in enumerate(value))
    return next(filter(None, (_too_large(one, key) for key, one in inner)), "")


def _catalog(tables: dict[str, Any], name: str) -> Catalog:
    try:
        return convert(tables, Catalog)
    except msgspec.ValidationError as error:
        msg = f"{name}: {_named(str(error), tables)}; {_advice(str(error))}"
        raise ConfigError(msg) from error


def _named(error: str, tables: dict[str, Any]) -> str:
    """Return ``error`` with the name of the cache that it is about, which its place leaves out."""
    lines = tables.get("cache")
    wrong = [name for name, line in lines.items() if not _fits(line)] if isinstance(lines, dict) else []
    return error.replace("$.cache[...]", f"$.cache.{wrong[0]}") if wrong else error


def _fits(line: object) -> bool:
    try:
        convert(line, CacheLine)
    except msgspec.ValidationError:
        return False
    return True


def _advice(error: str) -> str:
    """Return what may stand where ``error`` points, and what was meant, as far as that can be told."""
    if table := re.search(r"Expected `array`, got `object` - at `\$\.(\w+)`", error):
        return f"begin each of these tables with [[{table[1]}]], in two brackets"
    allowed = _allowed(error)
    said = re.search(r"unknown field `(.*?)`|enum value '(.*?)'", error)
    near = get_close_matches(said[1] or said[2], allowed, cutoff=0.65) if said else []
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"allowed there: {', '.join(allowed)}{meant}"


def _allowed(error: str) -> tuple[str, ...]:
    """Return the keys, or the words, that may stand where ``error`` points."""
    if "enum value" in error:
        return get_args(Api)
    place = re.search(r"`(\$\.\w+)\[", error)
    if place:
        return _PLACES.get(place.group(1), Catalog).__struct_fields__
    return (*Catalog.__struct_fields__, *_OURS)


def checked(catalog: Catalog, name: str) -> Catalog:
    """Return ``catalog``; ``ConfigError`` names the line in which a name or a pattern leads nowhere."""
    for index, line in enumerate(catalog.model):
        if line.cache is not None and line.cache not in catalog.cache:
            known = ", ".join(sorted(catalog.cache))
            msg = f"{name}: model {line.match!r} names cache {line.cache!r}, which no [cache.…] table defines: {known}"
            raise ConfigError(msg)
        if line.id_pattern is not None and (wrong := _wrong_pattern(line.id_pattern)):
            msg = f"{name}: {line.id_pattern!r} {wrong} - at `$.model[{index}].id_pattern`; say, for one, [a-z0-9]"
            raise ConfigError(msg)
        if odd := [kind for kind in line.media or () if "/" not in kind]:
            msg = f"{name}: {odd[0]!r} is no MIME type - at `$.model[{index}].media`; say, for one, image/png"
            raise ConfigError(msg)
    return catalog


def _wrong_pattern(pattern: str) -> str:
    """Return what is wrong with the pattern of a call id's characters, or nothing."""
    try:
        refused = [char for char in "0123456789abcdef" if not re.fullmatch(pattern, char)]
    except re.error as error:
        return f"is no pattern ({error})"
    return f"does not take {', '.join(refused)}, of which new ids are made" if refused else ""
