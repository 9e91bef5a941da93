"""The tables ``[policy]`` and ``[store]`` of a ``holdfast.toml``.

``[policy]`` changes settings of every policy, ``[policy.NAME]`` those of one, and is stronger::

    [policy]
    spill_chars = 30_000

    [policy.pi]
    tail_tokens = 12_000

    [store]
    session_bytes = 500_000_000
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast.errors import ConfigError
from holdfast.planning.presets.presets import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import convert_setting_value, describe_allowed_values
from holdfast.state.codec.reading import convert_value

ByteCount = Annotated[int, Meta(ge=0)]


class Override(Struct, frozen=True):
    """A setting that a file changes: of one policy, or of every policy where ``policy`` is empty."""

    setting: str
    value: Any
    policy: str
    file: str

    @property
    def table_header(self) -> str:
        """The table of the file that it stands in."""
        return _format_table_header(self.policy)


class StoreLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How large a store may grow, in bytes; 0 is no limit, and nothing is what the weaker file says."""

    session_bytes: ByteCount | None = None
    """Bytes of one session's entries."""
    blob_bytes: ByteCount | None = None
    """Bytes of all blobs together."""

    def merge_over(self, fallback: StoreLimits) -> StoreLimits:
        """Return what holds when these limits are stronger than ``fallback``."""
        own_values, fallback_values = asdict(self), asdict(fallback)
        return StoreLimits(
            **{name: fallback_values[name] if size is None else size for name, size in own_values.items()}
        )

    @property
    def set_limits(self) -> dict[str, int]:
        """The limits that there are, by name."""
        return {name: size for name, size in asdict(self).items() if size}


def parse_overrides(table: object, file: str) -> tuple[Override, ...]:
    """Return what table ``[policy]`` changes, the weaker before the stronger; ``ConfigError`` names a wrong key."""
    whole = require_table(table, "[policy]", file)
    inner = {key: value for key, value in whole.items() if key not in Settings.__struct_fields__}
    changes = [*_iter_overrides({key: value for key, value in whole.items() if key not in inner}, "", file)]
    for name, policy_table in inner.items():
        if name not in PRESETS and not isinstance(policy_table, dict):
            raise _build_unknown_setting_error(name, f"{file}: [policy]")
        if name not in PRESETS:
            raise ConfigError(describe_unknown_name("policy", name, PRESETS, f"{file}: [policy.{name}]"))
        changes += _iter_overrides(require_table(policy_table, f"[policy.{name}]", file), name, file)
    return tuple(changes)


def _iter_overrides(table: dict[str, Any], policy: str, file: str) -> Iterator[Override]:
    for key, value in table.items():
        place = f"{file}: {_format_table_header(policy)}"
        if key not in Settings.__struct_fields__:
            raise _build_unknown_setting_error(key, place)
        try:
            yield Override(key, convert_setting_value(key, value), policy, file)
        except ValueError as error:
            msg = f"{place} {key} = {format_short_value(value)}: {error}; allowed is {describe_allowed_values(key)}"
            raise ConfigError(msg) from error


def parse_store_limits(table: object, file: str) -> StoreLimits:
    """Return what table ``[store]`` says; ``ConfigError`` names a wrong key."""
    values, limit_names = require_table(table, "[store]", file), StoreLimits.__struct_fields__
    for key, value in values.items():
        if key not in limit_names:
            raise ConfigError(describe_unknown_name("limit", key, limit_names, f"{file}: [store]"))
        try:
            convert_value({key: value}, StoreLimits)
        except msgspec.ValidationError as error:
            msg = (
                f"{file}: [store] {key} = {format_short_value(value)}: {error}; allowed is a whole number of "
                "bytes, 0 = no limit"
            )
            raise ConfigError(msg) from error
    return convert_value(values, StoreLimits)


def require_table(table: object, name: str, file: str) -> dict[str, Any]:
    """Return ``table``, which stands under ``name``; ``ConfigError`` where it is none."""
    if isinstance(table, dict):
        return table
    msg = f"{file}: {name[1:-1]} = {format_short_value(table)} is no table; write {name} on a line, and its keys below"
    raise ConfigError(msg)


def _build_unknown_setting_error(name: str, place: str) -> ConfigError:
    """Return the error for a setting of a policy that there is not; all of them would be a page."""
    names = Settings.__struct_fields__
    all_ = f"of the {len(names)} none is like it: take it away, then `holdfast policy show holdfast` lists them"
    return ConfigError(describe_unknown_name("setting", name, names, place, all_))


def describe_unknown_name(kind: str, name: str, known_names: Iterable[str], place: str, fallback: str = "") -> str:
    """Return the words for a name that is not known, with the nearest ones, or with ``fallback`` that are known."""
    names = list(known_names)
    near = get_close_matches(name, names)
    hint = f"did you mean {' or '.join(near)}?" if near else fallback or f"there are: {', '.join(names)}"
    return f"{place}: no {kind} is called {name!r}; {hint}"


def _format_table_header(policy: str) -> str:
    return f"[policy.{policy}]" if policy else "[policy]"


def format_short_value(value: object) -> str:
    """Return a value for people, its end left out where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
