"""Changes of options that a model needs: a field gets another value, or is left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct


class OptionChange(Struct, frozen=True):
    """A change of one option of a request."""

    rule: str
    """The rule that the option breaks without it, by its name after the API's."""
    path: str
    """The path of the option: a field, or ``outer.inner`` for a field inside another."""
    value: Any
    """The new value; None to leave the option out."""
    note: str
    """What is changed and why, in one line for the user."""


def apply_option_changes(fields: Mapping[str, Any], changes: Iterable[OptionChange]) -> dict[str, Any]:
    """Return the options of a decoded body with ``changes`` made; an object that becomes empty is left out."""
    new_fields = dict(fields)
    for change in changes:
        outer, _, inner = change.path.partition(".")
        value = change.value
        if inner:
            inner_fields = {**new_fields.get(outer, {}), inner: value}
            if value is None:
                del inner_fields[inner]
            value = inner_fields or None
        if value is None:
            new_fields.pop(outer, None)
        else:
            new_fields[outer] = value
    return new_fields
