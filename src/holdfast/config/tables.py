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
from holdfast.planning.settings_check import allowed, converted
from holdfast.state.codec.reading import convert

Bytes = Annotated[int, Meta(ge=0)]


class Override(Struct, frozen=True):
    """A setting that a file changes: of one policy, or of every policy where ``policy`` is empty."""

    setting: str
    value: Any
    policy: str
    file: str

    @property
    def table(self) -> str:
        """The table of the file that it stands in."""
        return _table(self.policy)


class StoreLimits(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How large a store may grow, in bytes; 0 is no limit, and nothing is what the weaker file says."""

    session_bytes: Bytes | None = None
    """Bytes of one session's entries."""
    blob_bytes: Bytes | None = None
    """Bytes of all blobs together."""

    def above(self, other: StoreLimits) -> StoreLimits:
        """Return what holds when these limits are stronger than ``other``."""
        mine, theirs = asdict(self), asdict(other)
        return StoreLimits(**{name: theirs[name] if size is None else size for name, size in mine.items()})

    @property
    def limits(self) -> dict[str, int]:
        """The limits that there are, by name."""
        return {name: size for name, size in asdict(self).items() if size}


def overrides(table: object, file: str) -> tuple[Override, ...]:
    """Return what table ``[policy]`` changes, the weaker before the stronger; ``ConfigError`` names a wrong key."""
    whole = as_table(table, "[policy]", file)
    inner = {key: value for key, value in whole.items() if key not in Settings.__struct_fields__}
    found = [*_changes({key: value for key, value in whole.items() if key not in inner}, "", file)]
    for name, one in inner.items():
        if name not in PRESETS and not isinstance(one, dict):
            raise _no_setting(name, f"{file}: [policy]")
        if name not in PRESETS:
            raise ConfigError(unknown("policy", name, PRESETS, f"{file}: [policy.{name}]"))
        found += _changes(as_table(one, f"[policy.{name}]", file), name, file)
    return tuple(found)


def _changes(table: dict[str, Any], policy: str, file: str) -> Iterator[Override]:
    for key, value in table.items():
        place = f"{file}: {_table(policy)}"
        if key not in Settings.__struct_fields__:
            raise _no_setting(key, place)
        try:
            yield Override(key, converted(key, value), policy, file)
        except ValueError as error:
            msg = f"{place} {key} = {shown(value)}: {error}; allowed is {allowed(key)}"
            raise ConfigError(msg) from error


def store_limits(table: object, file: str) -> StoreLimits:
    """Return what table ``[store]`` says; ``ConfigError`` names a wrong key."""
    given, known = as_table(table, "[store]", file), StoreLimits.__struct_fields__
    for key, value in given.items():
        if key not in known:
            raise ConfigError(unknown("limit", key, known, f"{file}: [store]"))
        try:
            convert({key: value}, StoreLimits)
        except msgspec.ValidationError as error:
            msg = f"{file}: [store] {key} = {shown(value)}: {error}; allowed is a whole number of bytes, 0 = no limit"
            raise ConfigError(msg) from error
    return convert(given, StoreLimits)


def as_table(table: object, name: str, file: str) -> dict[str, Any]:
    """Return ``table``, which stands under ``name``; ``ConfigError`` where it is none."""
    if isinstance(table, dict):
        return table
    msg = f"{file}: {name[1:-1]} = {shown(table)} is no table; write {name} on a line, and its keys below"
    raise ConfigError(msg)


def _no_setting(name: str, place: str) -> ConfigError:
    """Return the error for a setting of a policy that there is not; all of them would be a page."""
    names = Settings.__struct_fields__
    all_ = f"of the {len(names)} none is like it: take it away, then `holdfast policy show holdfast` lists them"
    return ConfigError(unknown("setting", name, names, place, all_))


def unknown(what: str, name: str, known: Iterable[str], place: str, all_: str = "") -> str:
    """Return the words for a name that is not known, with the nearest ones, or with ``all_`` that are known."""
    names = list(known)
    near = get_close_matches(name, names)
    told = f"did you mean {' or '.join(near)}?" if near else all_ or f"there are: {', '.join(names)}"
    return f"{place}: no {what} is called {name!r}; {told}"


def _table(policy: str) -> str:
    return f"[policy.{policy}]" if policy else "[policy]"


def shown(value: object) -> str:
    """Return a value for people, its end left out where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
