"""A limit of the answer where the API must be told one and is told none."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw

from holdfast.providers.common.json.json_path import Tree
from holdfast.providers.common.json.raw_json import spliced, write
from holdfast.providers.common.request_options import NEEDED
from holdfast.providers.fix.replacements import number
from holdfast.providers.fix.work import Mend, Work
from holdfast.providers.recognize import body_fields
from holdfast.providers.rules import Finding

_RULE, _PLACE = "anthropic.required", "$.max_tokens"


def completed(body: bytes, _work: Work, errors: Sequence[Finding]) -> tuple[bytes, list[Mend]]:
    """Return the body with ``max_tokens``, if it misses them: what an answer may have behind its thinking."""
    if not any((error.rule, error.path) == (_RULE, _PLACE) for error in errors):
        return body, []
    most = NEEDED + number(Tree(Raw(body)).at(("thinking", "budget_tokens")))
    why = f"max_tokens is set to {most}, since one must be named there"
    return spliced(body, body_fields(body), {"max_tokens": write(most)}), [Mend(_RULE, why, _PLACE)]
