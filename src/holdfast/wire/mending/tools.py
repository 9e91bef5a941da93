"""Tools that are offered in another API's form, read by that API's reader and written by this one's writer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from msgspec import Raw

from holdfast.wire import asked
from holdfast.wire.apis import FORMS
from holdfast.wire.mending.work import Mend, Work
from holdfast.wire.pieces import listed
from holdfast.wire.recognise import body_fields
from holdfast.wire.rules import Finding
from holdfast.wire.splice import spliced, value, write
from holdfast.wire.whose import offered_by

_FIELD = "tools"


def offered(body: bytes, work: Work, _errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with tools in another API's form in that of its own; those that only that API has stay."""
    api, found = work.form.api, body_fields(body)
    pairs = [(offered_by(value(raw)), raw) for raw in listed(found.get(_FIELD, Raw(b"[]")))]
    new: list[object] = []
    edits = []
    for kind, run in groupby(pairs, key=lambda pair: pair[0]):
        raws = [raw for _, raw in run]
        made = None if kind is None or api in kind.apis else _anew(raws, kind.apis[0], api)
        if made and kind is not None:
            why = f"{len(raws)} × {kind.told}: written as {work.form.name} has it"
            edits.append(Mend("foreign-form", why, f"$.{_FIELD}[{pairs.index((kind, raws[0]))}]"))
        new += made or raws
    return (spliced(body, found, {_FIELD: write(new)}), edits) if edits else (body, [])


def _anew(raws: Sequence[Raw], of: str, to: str) -> list[object]:
    """Return tools of one API as another has them."""
    asks = asked.read(of, {_FIELD: Raw(write(raws))}, FORMS[of].field)
    return list(asked.write(to, asked.Asked(tools=asks.tools))[0].get(_FIELD, ()))
