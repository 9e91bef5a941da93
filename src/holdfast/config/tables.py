"""The tables ``[policy]`` and ``[store]`` of a ``holdfast.toml``.

``[policy.GROUP]`` changes settings of every policy. ``[policy.NAME.GROUP]`` changes those of one policy and is
stronger. The group ``preset`` has the settings that only that policy has::

    [policy.results]
    spill_chars = 30_000

    [policy.pi.preset]
    tail_tokens = 12_000

    [policy.claude-code]
    compaction.auto = false

    [store]
    session_bytes = 500_000_000
    blobs = "s3://my-bucket/holdfast"
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from holdfast.errors import ConfigError
from holdfast.planning.policy_rules import PolicyRules
from holdfast.planning.presets.registry import PRESETS
from holdfast.planning.settings import Settings
from holdfast.planning.settings_check import (
    PRESET_GROUP,
    convert_setting_value,
    describe_allowed_values,
    describe_unknown_setting,
    list_setting_groups,
)
from holdfast.state.codec.reading import convert_value

MAX_BYTES = 10**18
"""An exabyte. No store is that large, and SQLite counts in 63 bits."""
ByteCount = Annotated[int, Meta(ge=0, le=MAX_BYTES)]


class Override(Struct, frozen=True):
    """A setting, by its dotted name, that a file changes: for one policy, or for all if ``policy`` is empty."""

    setting: str
    value: Any
    policy: str
    file: str

    @property
    def table_header(self) -> str:
        """The header of the table in which the file changes it."""
        return _format_table_header(self.policy, self.setting.partition(".")[0])

    @property
    def key(self) -> str:
        """Its key in that table."""
        return self.setting.partition(".")[2]


class StoreSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits of a store in bytes (0 is none), and where its blobs are. None leaves it to the weaker file."""

    session_bytes: ByteCount | None = None
    """Bytes of the entries of one session."""
    blob_bytes: ByteCount | None = None
    """Bytes of all blobs together."""
    blobs: str | None = None
    """Where the blobs of a new store go, if not beside its file: ``s3://BUCKET/PREFIX``."""

    def merge_over(self, fallback: StoreSettings) -> StoreSettings:
        """Return these settings, with those of ``fallback`` in place of unset ones."""
        fallback_values = asdict(fallback)
        values: dict[str, Any] = {}
        for name, value in asdict(self).items():
            values[name] = fallback_values[name] if value is None else value
        return StoreSettings(**values)

    @property
    def set_limits(self) -> dict[str, int]:
        """The limits that are set and not 0, by name."""
        sizes = {"session_bytes": self.session_bytes, "blob_bytes": self.blob_bytes}
        return {name: size for name, size in sizes.items() if size}


def parse_overrides(table: object, file: str) -> tuple[Override, ...]:
    """Parse table ``[policy]`` into overrides, the weaker first; raise ``ConfigError`` for a wrong key."""
    policy_tables = require_table(table, "[policy]", file)
    groups = {}
    for key, value in policy_tables.items():
        if key in Settings.__struct_fields__:
            groups[key] = value
    # Those of all policies first, since a later override is stronger.
    changes = [*_iter_overrides(groups, "", PolicyRules, file)]
    for name, policy_table in policy_tables.items():
        if name in groups:
            continue
        if name not in PRESETS:
            raise ConfigError(_describe_unknown_table(name, policy_table, file))
        policy_groups = require_table(policy_table, f"[policy.{name}]", file)
        changes += _iter_overrides(policy_groups, name, type(PRESETS[name].rules), file)
    return tuple(changes)


def _iter_overrides(
    groups: dict[str, Any],
    policy: str,
    rules_type: type[PolicyRules],
    file: str,
) -> Iterator[Override]:
    known_groups = list_setting_groups(rules_type)
    for group, table in groups.items():
        if group not in known_groups:
            place = f"{file}: {_format_table_header(policy)}"
            hint = describe_unknown_setting(group, rules_type)
            raise ConfigError(f"{place}: no group of settings is called {group!r}; {hint}")
        header = _format_table_header(policy, group)
        for key, value in require_table(table, header, file).items():
            name = f"{group}.{key}"
            if key not in known_groups[group]:
                hint = describe_unknown_setting(name, rules_type)
                raise ConfigError(f"{file}: {header}: no setting is called {key!r}; {hint}")
            try:
                yield Override(name, convert_setting_value(name, value, rules_type), policy, file)
            except ValueError as error:
                allowed = describe_allowed_values(name, rules_type)
                msg = f"{file}: {header} {key} = {format_short_value(value)}: {error}; allowed is {allowed}"
                raise ConfigError(msg) from error


def _describe_unknown_table(name: str, table: object, file: str) -> str:
    """Return the error for a key of ``[policy]`` that is neither a group of settings nor a policy."""
    if name == PRESET_GROUP:
        return f"{file}: [policy.preset] belongs to no policy; write [policy.NAME.preset]"
    # A table was probably meant as a policy, unless its name resembles a group of settings only.
    resembles_policy = bool(get_close_matches(name, PRESETS))
    resembles_group = bool(get_close_matches(name, Settings.__struct_fields__))
    if isinstance(table, dict) and (resembles_policy or not resembles_group):
        return describe_unknown_name("policy", name, PRESETS, f"{file}: [policy.{name}]")
    return f"{file}: [policy]: no setting is called {name!r}; {describe_unknown_setting(name)}"


def parse_store_settings(table: object, file: str) -> StoreSettings:
    """Parse table ``[store]``; raise ``ConfigError`` for a wrong key or value."""
    values = require_table(table, "[store]", file)
    setting_names = StoreSettings.__struct_fields__
    for key, value in values.items():
        if key not in setting_names:
            raise ConfigError(describe_unknown_name("setting", key, setting_names, f"{file}: [store]"))
        # Each value is converted alone first, so that the error can name its key.
        try:
            convert_value({key: value}, StoreSettings)
        except msgspec.ValidationError as error:
            allowed = "s3://BUCKET/PREFIX" if key == "blobs" else "a whole number of bytes, 0 = no limit"
            msg = f"{file}: [store] {key} = {format_short_value(value)}: {error}; allowed is {allowed}"
            raise ConfigError(msg) from error
    return convert_value(values, StoreSettings)


def check_project_store(settings: StoreSettings, file: str, user_file: str) -> None:
    """Raise ``ConfigError`` if a project's file says where blobs are.

    A folder that was downloaded from somewhere must not decide where the texts of a conversation are sent.
    """
    if settings.blobs:
        problem = f"{file}: [store] blobs would lead beyond this machine, which a project's file may not say"
        raise ConfigError(f"{problem}; move the line to {user_file} if you want it")


def require_table(table: object, name: str, file: str) -> dict[str, Any]:
    """Return ``table``; raise ``ConfigError`` if the value called ``name`` is not a table."""
    if isinstance(table, dict):
        return table
    msg = (
        f"{file}: {name[1:-1]} = {format_short_value(table)} must be a table; write {name} on a line of its own, and "
        "its keys below"
    )
    raise ConfigError(msg)


def describe_unknown_name(
    kind: str,
    name: str,
    known_names: Iterable[str],
    place: str,
    fallback: str = "",
) -> str:
    """Return an error for an unknown name, with the nearest known ones, else ``fallback``, else all known ones."""
    names = list(known_names)
    near = get_close_matches(name, names)
    hint = fallback or f"there are: {', '.join(names)}"
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    return f"{place}: no {kind} is called {name!r}; {hint}"


def _format_table_header(policy: str, group: str = "") -> str:
    parts = [part for part in ("policy", policy, group) if part]
    return f"[{'.'.join(parts)}]"


def format_short_value(value: object) -> str:
    """Return a value as text of at most 60 characters, for an error."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"
