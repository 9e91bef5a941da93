"""Fix a request body so that its API accepts it.

A valid request keeps its bytes. Lone surrogates are replaced first, because nothing can parse a body with one. If the
validator still finds errors, steps run in rounds:

1. *forming* steps bring the list of messages, the system prompt, tools, foreign blocks and each message into the form
   of the API;
2. *repairing* steps scale images that are too large,
   normalize the history, change options that the model refuses or that break another rule in the one
   right way, and add a missing output limit.

Two laws hold for every step: it must not lose a word of a user or system prompt, and its change is kept only if fewer
rules are broken in the end than before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from holdfast.errors import FormatError, raise_if_wrong_type
from holdfast.providers.common.json import surrogates
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.common.json.lenient_json import read_json_text
from holdfast.providers.dialects.request_provider import RequestProvider, check_provider_name, find_request_provider
from holdfast.providers.fix.fix_context import FixContext, FixResult, FixStep, RequestFix, select_error_findings
from holdfast.providers.fix.function_results import join_function_contents, name_function_results
from holdfast.providers.fix.history import normalize_body_history
from holdfast.providers.fix.images import scale_oversized_images
from holdfast.providers.fix.lost_text import count_user_texts, has_lost_text
from holdfast.providers.fix.message_list import fix_message_list
from holdfast.providers.fix.message_shapes import reshape_messages
from holdfast.providers.fix.model_options import fit_options_to_model
from holdfast.providers.fix.options import fix_options_greedily
from holdfast.providers.fix.output_limit import add_missing_max_tokens
from holdfast.providers.fix.provider_requirements import apply_provider_requirements
from holdfast.providers.fix.tool_schemas import repair_tool_schemas
from holdfast.providers.fix.tools import translate_foreign_tools
from holdfast.providers.fix.translate_foreign import translate_foreign_messages
from holdfast.providers.registry import get_api_dialect, get_api_spec
from holdfast.providers.requests.recognize import recognize_api
from holdfast.providers.rules.rule import Finding
from holdfast.state.dialect import Dialect

# The list first, since all others look for messages in it; foreign tools and blocks before each message's own shape,
# which would render what it does not know as text.
_FORMING_STEPS: tuple[FixStep, ...] = (
    fix_message_list,
    translate_foreign_tools,
    translate_foreign_messages,
    name_function_results,
    join_function_contents,
    reshape_messages,
)
_REPAIRING_STEPS: tuple[FixStep, ...] = (
    scale_oversized_images,
    normalize_body_history,
    apply_provider_requirements,
    fit_options_to_model,
    repair_tool_schemas,
    fix_options_greedily,
    add_missing_max_tokens,
)
# One round is enough unless a fix brings another error to light. Six is chosen by judgement: each round validates the
# body once a step, so more rounds cost time on bodies that cannot be fixed.
_MAX_ROUNDS = 6
"""Rounds of steps before the remaining errors are left as findings."""


def fix_request(  # noqa: PLR0913 - each is a fact about the request that is not in its body
    body: bytes,
    api: str | None = None,
    *,
    model: str = "",
    provider: str | RequestProvider = "",
    dialect: Callable[[str, str], Dialect] | None = None,
    betas: Sequence[str] | None = None,
    version: str = "",
    complete: bool = False,
    keep_model_options: bool = False,
    ignored_rules: Collection[str] = (),
) -> FixResult:
    """Fix ``body`` for its API. A valid body comes back as the same object.

    ``api`` is recognized from the body if it is not given. ``model`` is the model whose rules apply, even if the body
    names another one; ``provider`` serves it, by default the one that the body or the model's name gives away.
    ``dialect`` returns the rules for an API and a model. ``betas`` are the beta features of the request's headers, and
    ``version`` is the header ``anthropic-version``. A ``complete`` request must also name its model and ``max_tokens``.
    With ``keep_model_options`` options stay that only the model refuses: the request is converted next, and the other
    API may take them. What breaks one of ``ignored_rules`` is left as it is and not reported.

    Raises ``FormatError`` if the body is not a JSON object, ``UnrecognizedContent`` if its API cannot be told, and
    ``ConfigError`` for an unknown provider.
    """
    if isinstance(provider, str):
        check_provider_name(provider)
    raise_if_wrong_type(FormatError, body=(body, bytes))
    body, fixes = fix_lone_surrogates(body)
    fields = parse_body_fields(body)
    api = api or recognize_api(fields, provider if isinstance(provider, str) else provider.name)
    spec = get_api_spec(api)
    body_model = read_json_text(fields.get("model"))
    model_name = model or body_model
    if isinstance(provider, str):
        provider = find_request_provider(spec.api, model_name, named=provider, fields=fields)
    context = FixContext(
        spec,
        model_name,
        tuple(betas) if betas is not None else None,
        dialect(api, model_name) if dialect is not None else get_api_dialect(spec.api, model_name, provider),
        has_other_model=model_name != body_model,
        provider=provider,
        complete=complete,
        version=version,
        keeps_model_options=keep_model_options,
        ignored_rules=frozenset(ignored_rules),
    )
    findings = context.validate_body(body)
    for _ in range(_MAX_ROUNDS):
        errors = select_error_findings(findings)
        outcome = _run_steps(body, context, errors, (*_FORMING_STEPS, *_REPAIRING_STEPS))
        # A body whose form is odd but accepted can get worse by forming, and still be helped by the repairs alone.
        if outcome is None:
            outcome = _run_steps(body, context, errors, _REPAIRING_STEPS)
        if outcome is None:
            break
        body = outcome.body
        fixes = (*fixes, *outcome.fixes)
        findings = context.validate_body(body)
    return FixResult(api, body, fixes, findings)


def fix_lone_surrogates(body: bytes) -> tuple[bytes, tuple[RequestFix, ...]]:
    """Replace lone surrogates by U+FFFD; return the same object and no fixes if the body has none."""
    clean_body = surrogates.replace_surrogates_in_bytes(body)
    if clean_body is body:
        return body, ()
    why = "half of a character (a lone surrogate) is replaced by U+FFFD"
    return clean_body, (RequestFix("characters", why, surrogates.find_lone_surrogate_path(body)),)


class _StepsOutcome(NamedTuple):
    body: bytes
    fixes: list[RequestFix]


def _run_steps(
    body: bytes,
    context: FixContext,
    errors: list[Finding],
    steps: Sequence[FixStep],
) -> _StepsOutcome | None:
    """Run steps one after the other and return the body as it was when it had the fewest errors.

    Return None if it never had fewer errors than at the start. A step may leave as many errors as before, or more: its
    change may be what the next step needs.
    """
    if not errors:
        return None
    best_outcome = None
    min_errors = len(errors)
    fixes: list[RequestFix] = []
    for step in steps:
        new_body, new_fixes = step(body, context, errors)
        if new_body == body:
            continue
        user_texts = count_user_texts(body, context.spec)
        if has_lost_text(user_texts, count_user_texts(new_body, context.spec), allow_merged=True):
            continue
        body = new_body
        fixes = [*fixes, *new_fixes]
        errors = context.list_errors(body)
        if len(errors) < min_errors:
            best_outcome = _StepsOutcome(body, fixes)
            min_errors = len(errors)
        if not errors:
            break
    return best_outcome
