"""Options that more than one API has, each under a name and at a place of its own.

Read from one body and written into another as they stand; only the form of an answer and the wish for probabilities
are said differently. Of these the Messages API has the form alone: its effort is not the same and stays behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct

TEXT_FORMAT = {"type": "text"}
"""The form that an answer has where none is asked for."""
NAMED_SCHEMA_FORMAT = {"type": "json_schema", "name": "answer"}
"""What OpenAI's APIs want said beside a schema."""


class SharedOption(Struct, frozen=True):
    """An option by our name, what is asked for, and the field it stood in."""

    name: str
    value: Any
    source_field: str


class SharedOptionForm(Struct, frozen=True):
    """How an API says the options that others have too."""

    paths: Mapping[str, str]
    """Where it has each of them: a field, or one inside another."""
    read_format: Callable[[Any, Mapping[str, Any]], Any]
    """Reads the form that an answer shall have, out of its field and the body, as OpenAI's Responses API says it;
    nothing when it is not known."""
    write_format: Callable[[dict[str, Any]], Any]
    """Writes that form as this API says it; nothing where there is no such form."""
    logprobs_value: Any = True
    """What the field for probabilities says to get them."""
    needs_logprobs_flag: bool = False
    """Who wants the most likely tokens must ask for probabilities too."""


class SiblingFields(Struct):
    """Fields that take the place of one."""

    fields: dict[str, Any]


def read_shared_options(form: SharedOptionForm, body: Mapping[str, Any]) -> tuple[SharedOption, ...]:
    """Return the options in a body that another API may have too."""
    raw = ((name, place, _get_nested_field(body, place)) for name, place in form.paths.items())
    option_values = (
        (name, place, _to_common_value(form, name, value, body)) for name, place, value in raw if value is not None
    )
    return tuple([SharedOption(name, value, place) for name, place, value in option_values if value is not None])


def list_unread_nested_fields(
    options: tuple[SharedOption, ...],
    body: Mapping[str, Any],
    nests: tuple[str, ...],
    more_read_paths: tuple[str, ...] = (),
) -> Iterator[str]:
    """Yield the fields inside ``nests`` that none of ``options`` stood in, and that are not ``more_read_paths``."""
    read_paths = {*(option.source_field for option in options), *more_read_paths}
    for nest in nests:
        inner = body.get(nest)
        paths = [f"{nest}.{key}" for key in inner] if isinstance(inner, dict) else [nest] if inner is not None else []
        yield from [path for path in sorted(paths) if path not in read_paths]


def write_shared_options(
    form: SharedOptionForm, options: tuple[SharedOption, ...]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that say ``options`` as ``form`` has them, and the fields of those that have no place there."""
    out: dict[str, Any] = {}
    written_names = set()
    dropped_paths = []
    for option in options:
        place = form.paths.get(option.name)
        value = None if place is None else _to_api_value(form, option)
        if place is not None and value is not None:
            _set_nested_field(out, place, value)
            written_names.add(option.name)
        elif option.value != TEXT_FORMAT:
            dropped_paths.append(option.source_field)
    if form.needs_logprobs_flag and "top_logprobs" in written_names:
        _set_nested_field(out, form.paths["logprobs"], form.logprobs_value)
    return out, tuple(dropped_paths)


def _get_nested_field(body: Mapping[str, Any], path: str) -> Any:
    outer, _, inner = path.partition(".")
    value = body.get(outer)
    return value if not inner else value.get(inner) if isinstance(value, dict) else None


def _set_nested_field(out: dict[str, Any], path: str, value: Any) -> None:
    """Put ``value`` at its place; the fields of an object of no name go beside what stands there."""
    outer, _, inner = path.partition(".")
    if not inner:
        out[outer] = value
    elif isinstance(value, SiblingFields):
        out.setdefault(outer, {}).update(value.fields)
    else:
        out.setdefault(outer, {})[inner] = value


# -- options that are said differently ---------------------------------------------------------------------------------


def _to_common_value(form: SharedOptionForm, name: str, value: Any, body: Mapping[str, Any]) -> Any:
    """Return what is asked for, in the form that OpenAI's Responses API has for it; nothing when it is not known."""
    if name == "logprobs":
        is_asked_for = type(value) is type(form.logprobs_value) and value == form.logprobs_value
        return is_asked_for or None
    return form.read_format(value, body) if name == "format" else value


def _to_api_value(form: SharedOptionForm, option: SharedOption) -> Any:
    if option.name == "logprobs":
        return form.logprobs_value
    if option.name != "format":
        return option.value
    return form.write_format(option.value)
