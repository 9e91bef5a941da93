"""Options that several APIs have, each under a name and at a place of its own.

They are copied from one body to another as they are; only the format of an answer and the wish for log probabilities
have different forms. The Messages API shares nothing but the format: its effort levels mean something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

TEXT_FORMAT = {"type": "text"}
"""The answer format that applies by default. Asking for it explicitly loses nothing where it has no form."""
NAMED_SCHEMA_FORMAT = {"type": "json_schema", "name": "answer"}
"""Fields that OpenAI's APIs require beside a schema; the name is any that is valid."""


class SharedOption(Struct, frozen=True):
    """An option under our own name, its value, and the path of the field it was read from."""

    name: str
    value: Any
    source_field: str


class SharedOptionForm(Struct, frozen=True):
    """How an API writes the options that others have too."""

    paths: Mapping[str, str]
    """The path of each option: a field, or ``outer.inner`` for a field inside another."""
    read_format: Callable[[Any, Mapping[str, Any]], Any]
    """Reads the answer format from its field and the body, in the form of OpenAI's Responses API; None if unknown."""
    write_format: Callable[[dict[str, Any]], Any]
    """Writes that form as this API has it; None if it has no such format."""
    logprobs_value: Any = True
    """The value that asks for log probabilities in their field."""
    needs_logprobs_flag: bool = False
    """A request for the most likely tokens must ask for log probabilities too."""


class SiblingFields(Struct):
    """A format that takes several fields, which are written beside each other in place of one."""

    fields: dict[str, Any]


def read_shared_options(form: SharedOptionForm, body: Mapping[str, Any]) -> tuple[SharedOption, ...]:
    """Read the options of a body that another API may have too."""
    options = []
    for name, path in form.paths.items():
        value = _get_nested_field(body, path)
        if value is not None:
            value = _to_common_value(form, name, value, body)
        if value is not None:
            options.append(SharedOption(name, value, path))
    return tuple(options)


def list_unread_nested_fields(
    options: tuple[SharedOption, ...],
    body: Mapping[str, Any],
    nests: tuple[str, ...],
    more_read_paths: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yield the paths inside the fields ``nests`` that are neither the source of an option nor ``more_read_paths``."""
    read_paths = {*(option.source_field for option in options), *more_read_paths}
    for nest in nests:
        inner = body.get(nest)
        paths: list[str] = []
        if isinstance(inner, dict):
            paths = [f"{nest}.{key}" for key in inner]
        elif inner is not None:
            paths = [nest]
        for path in sorted(paths):
            if path not in read_paths:
                yield path


def write_shared_options(
    form: SharedOptionForm, options: tuple[SharedOption, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that ask for ``options``, and the source fields of options that this API does not have."""
    fields: dict[str, Any] = {}
    written_names = set()
    dropped_paths = []
    for option in options:
        path = form.paths.get(option.name)
        value = None if path is None else _to_api_value(form, option)
        if path is not None and value is not None:
            _set_nested_field(fields, path, value)
            written_names.add(option.name)
        elif option.value != TEXT_FORMAT:  # plain text is the default everywhere, so dropping it loses nothing
            dropped_paths.append(option.source_field)
    if form.needs_logprobs_flag and "top_logprobs" in written_names:
        _set_nested_field(fields, form.paths["logprobs"], form.logprobs_value)
    return fields, tuple(dropped_paths)


def _get_nested_field(body: Mapping[str, Any], path: str) -> Any:
    outer, _, inner = path.partition(".")
    value = body.get(outer)
    if not inner:
        return value
    return value.get(inner) if isinstance(value, dict) else None


def _set_nested_field(fields: dict[str, Any], path: str, value: Any) -> None:
    """Set ``value`` at ``path`` in ``fields``; sibling fields are merged into the object that holds them."""
    outer, _, inner = path.partition(".")
    if not inner:
        fields[outer] = value
    elif isinstance(value, SiblingFields):
        fields.setdefault(outer, {}).update(value.fields)
    else:
        fields.setdefault(outer, {})[inner] = value


# -- options that are said differently ---------------------------------------------------------------------------------


def _to_common_value(
    form: SharedOptionForm,
    name: str,
    value: Any,
    body: Mapping[str, Any],
) -> Any:
    """Return the value of an option in the form that APIs exchange, or None if its form is not known."""
    if name == "logprobs":
        # The types must match as well, since 1 == True in Python.
        is_asked_for = type(value) is type(form.logprobs_value) and value == form.logprobs_value
        return True if is_asked_for else None
    if name == "format":
        return form.read_format(value, body)
    return value


def _to_api_value(form: SharedOptionForm, option: SharedOption) -> Any:
    if option.name == "logprobs":
        return form.logprobs_value
    if option.name != "format":
        return option.value
    return form.write_format(option.value)
