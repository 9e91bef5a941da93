"""What a request asks for beside its messages, read from a body of one API and written for another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from holdfast.errors import FormatError
from holdfast.providers.common.portable_options import PortableOptions
from holdfast.providers.common.shared_options import write_shared_options
from holdfast.providers.registry import API_SPECS


def read_request_options(api: str, fields: Mapping[str, Raw], messages_field: str) -> PortableOptions:
    """Return what the fields of a body ask for; ``messages_field`` is the field of its messages."""
    plain = {key: _decode_option(raw, key) for key, raw in fields.items() if key not in (messages_field, "model")}
    return API_SPECS[api].options.read({key: value for key, value in plain.items() if value is not None})


def write_request_options(api: str, options: PortableOptions) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of a body that asks for the same, and what of it has no form there; the system goes apart."""
    form = API_SPECS[api].options
    body, notes = form.write(options)
    option_fields, dropped_fields = write_shared_options(form.shared, options.shared_options)
    for key, value in option_fields.items():
        old_value = body.get(key)
        body[key] = old_value | value if isinstance(old_value, dict) else value
    fields = {key: value for key, value in body.items() if value not in (None, [], ())}
    tool_names = ", ".join(map(repr, options.allowed_tools))
    choice_notes = (f"that only {tool_names} of the tools may be called has no form there",) if tool_names else ()
    return fields, (*notes, *choice_notes, *(f"the field {name}: left out" for name in dropped_fields))


def _decode_option(raw: Raw, key: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"$.{key} cannot be read: {error}; send valid JSON") from None
