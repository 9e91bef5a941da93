"""Check a request body against the rules of its API before it is sent.

A body that extends one that was checked before is checked only in its new part, so that the cost of a check stays
proportional to what is new.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.errors import InvalidRequest
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.dialects.registry import PROVIDER_SPECS
from holdfast.providers.dialects.request_provider import get_dialect_provider
from holdfast.providers.fix.client_options import HEADER_RULES
from holdfast.providers.fix.fix_context import RequestFix
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import API_SPECS, get_api_spec
from holdfast.providers.requests.parsed_request import ParsedRequest
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request
from holdfast.state.dialect import Dialect

# Parallel calls come back in as many messages at most. More than that is rare enough to pay for a full check, and the
# bound keeps the search from walking a long history. Chosen by judgement.
_MAX_LOOKBACK = 64
"""Messages searched backwards for the calls that the newest results belong to."""
_CHECKED_PLACEHOLDER = SizedMessage(Message.from_text("user", "(what was judged before)"))
"""Stands for the checked part of a conversation: no API lets a conversation begin with an answer."""

# These fields are the client's, and pass unchanged. A gateway or Azure may serve a model of this name by other rules,
# so the server decides; `holdfast lint` and `fix` go by the rules of OpenAI itself.
_MODEL_OPTION_RULES = frozenset(
    f"{api}.{rule}"
    for api in ("openai-chat", "openai-responses")
    for rule in ("model-sampling", "model-limit", "model-effort", "model-tools", "cache-retention", "service-tier")
)
"""Rules about options that not every model of OpenAI's takes."""
_GEMINI_OPTION_RULES = frozenset({"gemini.server-side-tools", "gemini.thinking-level"})
"""The same of Gemini's models; Vertex does not know the flag that the first of them asks for."""
# The tools are the client's too, and servers that speak an API take more than the API itself. Writing them anew would
# also break the cached prefix of a session that works.
_CLIENT_TOOL_RULES = frozenset(f"{owner}.tool-schema" for owner in (*API_SPECS, *PROVIDER_SPECS))
"""Rules about the schemas of tools."""
# The headers come from a proxy's client or an SDK and are not known here, so their absence proves nothing.
_UNCHECKED_RULES = (
    HEADER_RULES | _MODEL_OPTION_RULES | _GEMINI_OPTION_RULES | _CLIENT_TOOL_RULES | {"anthropic.advisor-model"}
)
"""Rules that do not stop a request here."""

# A change that only leaves out what the model refuses, or puts it where it belongs, serves the client better than an
# error; the notice names the rule.
_FIXED_OPTION_RULES = frozenset(
    f"anthropic.{rule}"
    for rule in ("model-sampling", "forced-tool", "thinking-mode", "speed", "deferred-cache", "deferred-all")
)
"""Rules about fields beside the messages that are satisfied in the one right way before a request is sent."""


class CheckedRequest(Struct, frozen=True):
    """A request that broke no rule, as the baseline for checking later ones.

    It has the body, where its last message starts and stops in the body (in bytes), and how many messages it shows.
    """

    model: str
    body: bytes
    last_message_start: int
    last_message_stop: int
    message_count: int


class CheckResult(Struct, frozen=True):
    """A request that its API accepts."""

    upstream_request: UpstreamRequest
    fixed_rule: str = ""
    """The first rule that the request broke before it was fixed; empty if nothing had to be fixed."""
    broken_message_rule: str = ""
    """The first of these rules that is about the conversation; empty if none is."""
    option_fixes: tuple[RequestFix, ...] = ()
    """What was changed in the fields beside the conversation."""


def make_check_baseline(upstream_request: UpstreamRequest, messages: Sequence[SizedMessage]) -> CheckedRequest | None:
    """Return the baseline for ``is_already_checked``, made from a request that was found to break no rule.

    ``messages`` are those that the request shows. Later requests that extend it are checked only in their new part.
    Return None if its last message is not in the body byte for byte: then a later body cannot be compared with it.
    """
    raw = messages[-1].raw if messages else None
    if raw is None:
        return None
    # From the end: the same words may have been said before.
    start = upstream_request.body.rfind(memoryview(raw))
    if start < 0:
        return None
    return CheckedRequest(
        upstream_request.model,
        upstream_request.body,
        start,
        start + len(raw),
        len(messages),
    )


def is_already_checked(
    upstream_request: UpstreamRequest,
    messages: Sequence[SizedMessage],
    client_body: ParsedRequest,
    checked: CheckedRequest | None,
    dialect: Dialect,
) -> bool:
    """Return whether ``upstream_request`` only adds to ``checked``, and the added messages break no rule.

    Up to the last message of ``checked`` it must have the same bytes, and from there on the bytes of ``client_body``.
    """
    if checked is None or checked.model != upstream_request.model or checked.message_count > len(messages):
        return False
    if not _is_extension_of(upstream_request.body, checked, client_body.body):
        return False
    new_messages = _extend_back_to_calls(messages, checked.message_count - 1)
    if new_messages is None:
        return False
    starts_with_user = bool(new_messages) and new_messages[0].message.role == "user"
    if starts_with_user:
        shown_messages = new_messages
    else:
        shown_messages = [_CHECKED_PLACEHOLDER, *new_messages]
    new_body = render_request(client_body, shown_messages)
    return not _find_errors(replace(upstream_request, body=new_body), dialect)


def check_request(upstream_request: UpstreamRequest, dialect: Dialect, *, hook: str = "") -> CheckResult:
    """Return ``upstream_request`` as its API accepts it, fixed if its messages broke a rule.

    A conversation can break rules without anybody's mistake: answers of compatible servers do not always keep the rules
    that the API has for its input. Raises ``InvalidRequest``, with the place and the rule, if the request cannot be
    fixed, and always if a ``hook`` made its messages: a hook's mistake must not be hidden.
    """
    findings = _find_errors(upstream_request, dialect)
    if not findings:
        return CheckResult(upstream_request)
    if not hook and all(_can_fix(finding, upstream_request) for finding in findings):
        fix_result = fix_request(
            upstream_request.body,
            upstream_request.api,
            model=upstream_request.model,
            provider=get_dialect_provider(dialect),
            dialect=lambda _api, _model: dialect,
            version=upstream_request.version,
            ignored_rules=_UNCHECKED_RULES,
        )
        fixed_request = replace(upstream_request, body=fix_result.body)
        if not _find_errors(fixed_request, dialect):
            message_rules = [finding.rule for finding in findings if _is_about_messages(finding, upstream_request)]
            option_fixes = tuple([fix for fix in fix_result.fixes if fix.rule in _FIXED_OPTION_RULES])
            return CheckResult(fixed_request, findings[0].rule, next(iter(message_rules), ""), option_fixes)
    raise _make_invalid_request_error(upstream_request, findings, hook)


def _make_invalid_request_error(
    upstream_request: UpstreamRequest, findings: Sequence[Finding], hook: str
) -> InvalidRequest:
    first = findings[0]
    more_note = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    subject = "the request"
    if hook and _is_about_messages(first, upstream_request):
        subject = f"the result of the hook {hook}"
    problem = f"{subject} breaks the rule {first.rule!r} of {upstream_request.api}"
    place = f"{first.path}: {first.message}{more_note}"
    advice = "run `holdfast lint` on the request, or send it with check=False"
    return InvalidRequest(f"{problem}: {place}; {advice}")


def _can_fix(finding: Finding, upstream_request: UpstreamRequest) -> bool:
    """Return whether the request may be changed to cure ``finding``."""
    return _is_about_messages(finding, upstream_request) or finding.rule in _FIXED_OPTION_RULES


def _is_about_messages(finding: Finding, upstream_request: UpstreamRequest) -> bool:
    """Return whether ``finding`` is about the conversation rather than the fields beside it."""
    return finding.path.startswith(f"$.{get_api_spec(upstream_request.api).messages_field}")


def _is_extension_of(body: bytes, checked: CheckedRequest, client_body: bytes) -> bool:
    """Return whether ``body`` is ``checked`` up to its last message, and ``client_body`` from that message on."""
    checked_part = memoryview(checked.body)[: checked.last_message_stop]
    new_part = memoryview(body)[checked.last_message_start :]
    return body.startswith(checked_part) and client_body.endswith(new_part)


def _extend_back_to_calls(messages: Sequence[SizedMessage], last: int) -> Sequence[SizedMessage] | None:
    """Return ``messages`` from index ``last`` on, extended backwards until every result in them has its call.

    Checked without its call, a result would count as an orphan. Return None if a call is over ``_MAX_LOOKBACK``
    messages away.
    """
    open_call_ids: set[str] = set()
    for sized_message in messages[last + 1 :]:
        open_call_ids |= {result.call_id for result in sized_message.message.results}
    for sized_message in messages[last + 1 :]:
        open_call_ids -= {call.id for call in sized_message.message.calls}
    for start in range(last, max(-1, last - _MAX_LOOKBACK), -1):
        message = messages[start].message
        open_call_ids |= {result.call_id for result in message.results}
        open_call_ids -= {call.id for call in message.calls}
        if not open_call_ids:
            return messages[start:]
    return None


def _find_errors(upstream_request: UpstreamRequest, dialect: Dialect) -> list[Finding]:
    findings = validate_request(
        upstream_request.body,
        upstream_request.api,
        model=upstream_request.model,
        provider=get_dialect_provider(dialect),
        version=upstream_request.version,
    )
    errors: list[Finding] = []
    for finding in findings:
        if finding.level == "error" and finding.rule not in _UNCHECKED_RULES:
            errors.append(finding)
    return errors
