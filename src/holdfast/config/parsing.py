"""Parse the text of one ``holdfast.toml``; errors name the wrong key and what is allowed there."""

from __future__ import annotations

import re
import tomllib
from difflib import get_close_matches
from typing import Any, get_args

import msgspec
from msgspec import Struct

from holdfast.config.catalog import ApiName, Catalog, CatalogCacheRules, CatalogModel, CatalogPrices, ProviderName
from holdfast.config.proxy import parse_proxy_table
from holdfast.config.tables import Override, StoreSettings, parse_overrides, parse_store_settings
from holdfast.errors import ConfigError
from holdfast.state.codec.reading import convert_value

_OTHER_TABLES = ("policy", "store", "proxy")
"""Tables of the file that are not part of the catalogue."""
_TABLE_TYPES: dict[str, type[Struct]] = {
    "$.model": CatalogModel,
    "$.price": CatalogPrices,
    "$.cache": CatalogCacheRules,
}


class ConfigFile(Struct, frozen=True):
    """The contents of one file."""

    catalog: Catalog = Catalog()
    overrides: tuple[Override, ...] = ()
    store: StoreSettings = StoreSettings()
    proxy: dict[str, Any] = {}


def parse_catalog(text: str, name: str) -> Catalog:
    """Parse the catalogue in TOML ``text``; ``name`` is the file's name for errors.

    Raises ``ConfigError`` with the wrong key and the allowed ones, also for other tables.
    """
    return parse_config_file(text, name).catalog


def parse_config_file(text: str, name: str) -> ConfigFile:
    """Parse all of TOML ``text``; raise ``ConfigError`` with the file, the wrong key and the allowed ones."""
    tables = _parse_toml(text, name)
    # All other tables go to the catalogue, so that an unknown one is refused there with the allowed names.
    catalog_tables = {key: table for key, table in tables.items() if key not in _OTHER_TABLES}
    return ConfigFile(
        catalog=_convert_catalog(catalog_tables, name),
        overrides=parse_overrides(tables.get("policy", {}), name),
        store=parse_store_settings(tables.get("store", {}), name),
        proxy=parse_proxy_table(tables.get("proxy", {}), name),
    )


def _parse_toml(text: str, name: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        msg = f"{name}: not TOML: {error}; correct the line"
        raise ConfigError(msg) from error
    except ValueError as error:  # Python parses no number of more than 4,300 digits
        msg = f"{name}: not TOML: a whole number is too long; give a smaller one"
        raise ConfigError(msg) from error
    return tables


def _convert_catalog(tables: dict[str, Any], name: str) -> Catalog:
    try:
        return convert_value(tables, Catalog)
    except msgspec.ValidationError as error:
        msg = f"{name}: {_insert_cache_name(str(error), tables)}; {_suggest_correction(str(error))}"
        raise ConfigError(msg) from error


def _insert_cache_name(error: str, tables: dict[str, Any]) -> str:
    """Return msgspec's ``error`` with the name of the wrong cache, which msgspec shows as ``[...]``."""
    cache_tables = tables.get("cache")
    if not isinstance(cache_tables, dict):
        return error
    for name, table in cache_tables.items():
        if not _is_valid_cache_line(table):
            return error.replace("$.cache[...]", f"$.cache.{name}")
    return error


def _is_valid_cache_line(line: object) -> bool:
    try:
        convert_value(line, CatalogCacheRules)
    except msgspec.ValidationError:
        return False
    return True


def _suggest_correction(error: str) -> str:
    """List the names allowed at the place of msgspec's ``error``, with the nearest one if the name is a misspelling."""
    single_table = re.search(r"Expected `array`, got `object` - at `\$\.(\w+)`", error)
    if single_table:
        return f"begin each of these tables with [[{single_table[1]}]], in two brackets"
    # msgspec names the wrong key but not the allowed ones.
    allowed = _list_allowed_names(error)
    wrong_name = re.search(r"unknown field `(.*?)`|enum value '(.*?)'", error)
    if wrong_name:
        near = get_close_matches(wrong_name[1] or wrong_name[2], allowed, cutoff=0.65)
    else:
        near = []
    suggestion = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"allowed there: {', '.join(allowed)}{suggestion}"


def _list_allowed_names(error: str) -> tuple[str, ...]:
    """Return the keys or words that are allowed at the place of msgspec's ``error``."""
    if "enum value" in error:
        return get_args(ProviderName if ".provider`" in error else ApiName)
    place = re.search(r"`(\$\.\w+)\[", error)
    if place:
        return _TABLE_TYPES.get(place.group(1), Catalog).__struct_fields__
    return (*Catalog.__struct_fields__, *_OTHER_TABLES)


def check_catalog(catalog: Catalog, name: str) -> Catalog:
    """Return ``catalog``; raise ``ConfigError`` for a line that names an unknown cache, or a wrong pattern or type.

    These are checks that a schema cannot express.
    """
    for index, line in enumerate(catalog.model):
        # Checked after merging, because a file may name a cache of the shipped tables.
        if line.cache is not None and line.cache not in catalog.cache:
            cache_names = ", ".join(sorted(catalog.cache))
            msg = (
                f"{name}: model {line.match!r} names cache {line.cache!r}, which no [cache.…] table defines: "
                f"{cache_names}"
            )
            raise ConfigError(msg)
        if line.id_pattern is None:
            pattern_problem = ""
        else:
            pattern_problem = _describe_pattern_problem(line.id_pattern)
        if pattern_problem:
            place = f"at `$.model[{index}].id_pattern`"
            raise ConfigError(f"{name}: {line.id_pattern!r} {pattern_problem} - {place}; say, for one, [a-z0-9]")
        wrong_types = [kind for kind in line.media or () if "/" not in kind]
        if wrong_types:
            msg = f"{name}: {wrong_types[0]!r} is no MIME type - at `$.model[{index}].media`; say, for one, image/png"
            raise ConfigError(msg)
    return catalog


def _describe_pattern_problem(pattern: str) -> str:
    """Describe the problem of a pattern for the characters of call ids; ``""`` without one.

    It must be a regular expression, and accept the hexadecimal digits that new ids are made of.
    """
    try:
        bad_chars = [char for char in "0123456789abcdef" if not re.fullmatch(pattern, char)]
    except re.error as error:
        return f"is no pattern ({error})"
    if bad_chars:
        return f"does not take {', '.join(bad_chars)}, of which new ids are made"
    return ""
