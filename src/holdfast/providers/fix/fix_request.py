"""A request made one that its API takes: its form, its history by hygiene, what stands around it by the validator.

A valid request keeps its very bytes. Halves of characters are mended first, for nothing reads a body with one in it.
What is refused is mended in rounds of steps: the list of messages and the system prompt get their form, then tools and
what stands in another API's form, then each message; then hygiene repairs the history, of what is still refused only
that is changed which has one right way to be mended, and a limit of the answer is named where one must be. Two laws
hold for every step: no word of a user or of a system prompt goes with it, and it stays only if in the end fewer rules
are broken than before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import FormatError, raise_if_wrong_type
from holdfast.providers.common.json import surrogates as halves
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.fix.fix_context import FixContext, FixResult, FixStep, RequestFix, select_error_findings
from holdfast.providers.fix.function_results import name_function_results
from holdfast.providers.fix.history import normalize_body_history
from holdfast.providers.fix.lost_text import count_user_texts, has_lost_text
from holdfast.providers.fix.message_list import fix_message_list
from holdfast.providers.fix.message_shapes import reshape_messages
from holdfast.providers.fix.options import fix_options_greedily
from holdfast.providers.fix.output_limit import add_missing_max_tokens
from holdfast.providers.fix.tools import translate_foreign_tools
from holdfast.providers.fix.translate_foreign import translate_foreign_messages
from holdfast.providers.registry import get_api_dialect, get_api_spec
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.rules.rule import Finding
from holdfast.state.dialect import Dialect

_FORMING_STEPS: tuple[FixStep, ...] = (
    fix_message_list,
    translate_foreign_tools,
    translate_foreign_messages,
    name_function_results,
    reshape_messages,
)
_REPAIRING_STEPS: tuple[FixStep, ...] = (normalize_body_history, fix_options_greedily, add_missing_max_tokens)
_MAX_ROUNDS = 6
"""Rounds before the rest stays as it is; one is enough unless mending one thing brings another to light."""


def fix_request(
    body: bytes,
    api: str | None = None,
    *,
    model: str = "",
    dialect: Callable[[str, str], Dialect] | None = None,
    betas: Sequence[str] | None = None,
    complete: bool = False,
) -> FixResult:
    """Return ``body`` made valid for its API; the very same object when it is valid already.

    ``model`` is whose rules hold, also where the body names another one; ``dialect`` tells them from API and model;
    ``betas`` are those of the request's headers; a ``complete`` request must name its model and its ``max_tokens`` too.
    Raises ``FormatError`` for what is no JSON object, and ``UnrecognizedContent`` for one of no API.
    """
    raise_if_wrong_type(FormatError, body=(body, bytes))
    body, edits = fix_lone_surrogates(body)
    fields = parse_body_fields(body)
    api = api or recognize_api(fields)
    spec, own = get_api_spec(api), read_json_text(fields.get("model"))
    model_name = model or own
    rules = dialect(api, model_name) if dialect is not None else get_api_dialect(spec.api, model_name)
    work = FixContext(
        spec,
        model_name,
        tuple(betas) if betas is not None else None,
        rules,
        has_other_model=model_name != own,
        complete=complete,
    )
    findings = work.validate_body(body)
    for _ in range(_MAX_ROUNDS):
        errors = select_error_findings(findings)
        result = _run_steps(body, work, errors, (*_FORMING_STEPS, *_REPAIRING_STEPS)) or _run_steps(
            body, work, errors, _REPAIRING_STEPS
        )
        if result is None:
            break
        body, new_edits = result
        edits = (*edits, *new_edits)
        findings = work.validate_body(body)
    return FixResult(api, body, edits, findings)


def fix_lone_surrogates(body: bytes) -> tuple[bytes, tuple[RequestFix, ...]]:
    """Return the body with U+FFFD for halves of characters, and what is told of it; the same object without any."""
    clean = halves.replace_surrogates_in_bytes(body)
    if clean is body:
        return body, ()
    why = "half of a character is no text: U+FFFD stands in its place"
    return clean, (RequestFix("characters", why, halves.find_lone_surrogate_path(body)),)


def _run_steps(
    body: bytes, work: FixContext, errors: list[Finding], steps: Sequence[FixStep]
) -> tuple[bytes, list[RequestFix]] | None:
    """Return the body after as many steps as leave the fewest rules broken; nothing unless those are fewer."""
    best, min_errors = None, len(errors)
    edits: list[RequestFix] = []
    for step in steps if errors else ():
        new, new_edits = step(body, work, errors)
        if new == body or has_lost_text(
            count_user_texts(body, work.spec), count_user_texts(new, work.spec), allow_merged=True
        ):
            continue
        body, edits, errors = new, [*edits, *new_edits], work.list_errors(new)
        if len(errors) < min_errors:
            best, min_errors = (body, edits), len(errors)
        if not errors:
            break
    return best
