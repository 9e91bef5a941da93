"""Results of functions in Chat's old form that do not say whose they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Raw

from holdfast.providers.common.json.json_path import opens
from holdfast.providers.common.json.lenient_json import items_of, text_of
from holdfast.providers.common.json.raw_json import fields, spliced, write
from holdfast.providers.fix.work import Mend, Work, made
from holdfast.providers.recognize import body_fields
from holdfast.providers.rules import Finding

_RULE = "openai-chat.legacy-result"


def answered(body: bytes, work: Work, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with each nameless result of a function under the name of the one call that waits for it.

    Where none does it is a tool's result without an id, which is tied to its call or told in words as those are.
    """
    told = {error.path: made(error, "it has that of the call that waits") for error in errors if error.rule == _RULE}
    if not told:
        return body, []
    field, found = work.form.field, body_fields(body)
    new = list(_named(items_of(found.get(field))))
    return spliced(body, found, {field: write(new)}), list(told.values())


def _named(raws: Sequence[Raw]) -> Iterator[Raw]:
    """Yield the messages; the open call is that of the last answer, until a function answers it."""
    name = ""
    for raw in raws:
        held = fields(raw) if opens(raw) == "{" else {}
        role = text_of(held.get("role"))
        nameless = role == "function" and not text_of(held.get("name"))
        yield Raw(write({**held, "name": name} if name else {**held, "role": "tool"})) if nameless else raw
        if role in ("assistant", "function"):
            name = _called(held)


def _called(held: Mapping[str, Raw]) -> str:
    """Return the name of the function that a message calls; nothing where it calls none."""
    call = held.get("function_call", Raw(b"null"))
    return text_of(fields(call).get("name")) if opens(call) == "{" else ""
