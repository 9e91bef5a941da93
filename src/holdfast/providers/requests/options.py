"""Convert the options of a request, everything beside its messages, from one API to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.providers.common.option_changes import apply_option_changes
from holdfast.providers.common.portable_options import PortableOptions
from holdfast.providers.common.shared_options import write_shared_options
from holdfast.providers.registry import API_SPECS


def read_request_options(api: str, fields: Mapping[str, Raw], messages_field: str) -> PortableOptions:
    """Read the options in the fields of a body; ``messages_field`` is the field with its messages."""
    values: dict[str, Any] = {}
    for key, raw in fields.items():
        if key in (messages_field, "model"):
            continue
        value = _decode_option(raw, key)
        if value is not None:
            values[key] = value
    return API_SPECS[api].options.read(values)


def write_request_options(
    api: str, options: PortableOptions, model: str = ""
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields that ask ``api`` for ``options``, and a note for each option that it has no form for.

    The system prompt is not among them: depending on the API it is a message. Options that ``model`` is known to
    refuse are changed or left out, with a note.
    """
    option_format = API_SPECS[api].options
    body, notes = option_format.write(options)
    shared_fields, dropped_fields = write_shared_options(option_format.shared, options.shared_options)
    for key, value in shared_fields.items():
        old_value = body.get(key)
        if isinstance(old_value, dict):
            body[key] = old_value | value
        else:
            body[key] = value
    fields = {key: value for key, value in body.items() if value not in (None, [], ())}
    all_notes = list(notes)
    if options.allowed_tools:
        tool_names = ", ".join(map(repr, options.allowed_tools))
        all_notes.append(f"the choice among only {tool_names}: left out, the API has no such option")
    all_notes += [f"the field {name}: left out" for name in dropped_fields]
    if option_format.find_model_changes is not None:
        changes = option_format.find_model_changes(fields, model, "")
        fields = apply_option_changes(fields, changes)
        all_notes += [change.note for change in changes]
    if option_format.describe_unfit_options is not None:
        all_notes += option_format.describe_unfit_options(fields, model)
    return fields, tuple(all_notes)


def _decode_option(raw: Raw, key: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"$.{key} cannot be read: {error}; send valid JSON") from None
