"""Judging a request before it goes out: whole, or where it grew from one that was judged, by what is new in it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.errors import InvalidRequest
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.request_body import ParsedRequest, render_request
from holdfast.providers.rules.rule import Finding
from holdfast.providers.rules.validate import validate_request

_MAX_LOOKBACK = 64
"""[H] Messages that are looked back on for the calls of the last results: one answer makes no more."""
_CHECKED_PLACEHOLDER = SizedMessage(Message.from_text("user", "(what was judged before)"))
"""Stands for all of it: no conversation begins with an answer."""

_HEADER_RULES = frozenset({"anthropic.binding-beta", "anthropic.compaction-beta"})
"""Rules about headers that the upstream sends, a proxy's client or an SDK, and that are not known here."""


class CheckedRequest(Struct, frozen=True):
    """A request with nothing wrong in it: its body, where its last message stands there, and how many it shows."""

    model: str
    body: bytes
    last_message_start: int
    last_message_stop: int
    message_count: int


def make_checked_request(upstream_request: UpstreamRequest, messages: Sequence[SizedMessage]) -> CheckedRequest | None:
    """Return ``upstream_request``, which shows ``messages`` and breaks no rule, for later requests to go on from.

    Nothing where its last message is not there as it came.
    """
    raw = messages[-1].raw if messages else None
    start = -1 if raw is None else upstream_request.body.rfind(memoryview(raw))
    return (
        None
        if raw is None or start < 0
        else CheckedRequest(upstream_request.model, upstream_request.body, start, start + len(raw), len(messages))
    )


def is_already_checked(
    upstream_request: UpstreamRequest,
    messages: Sequence[SizedMessage],
    client_body: ParsedRequest,
    checked: CheckedRequest | None,
) -> bool:
    """Return whether nothing in ``upstream_request`` needs to be judged but what its client said since, and that breaks
    no rule.

    It is what was judged up to the last message there, and from that one on what ``client_body``, its client's body,
    says.
    """
    if checked is None or checked.model != upstream_request.model or checked.message_count > len(messages):
        return False
    if not _is_extension_of(upstream_request.body, checked, client_body.body):
        return False
    new = _extend_back_to_calls(messages, checked.message_count - 1)
    if new is None:
        return False
    shown_messages = new if new and new[0].message.role == "user" else [_CHECKED_PLACEHOLDER, *new]
    return not _find_errors(replace(upstream_request, body=render_request(client_body, shown_messages)))


def check_request(upstream_request: UpstreamRequest, *, hook: str = "") -> tuple[UpstreamRequest, str]:
    """Return ``upstream_request`` as its API takes it, and the rule that its conversation broke, where it had to be
    mended for it.

    What a server said may break the rules that its own API has for what is said to it. ``InvalidRequest`` says what is
    wrong with a request that is not mended so, and where; one whose messages a ``hook`` made never is.
    """
    wrong = _find_errors(upstream_request)
    if not wrong:
        return upstream_request, ""
    if not hook and all(_is_about_messages(finding, upstream_request) for finding in wrong):
        fixed_request = replace(
            upstream_request,
            body=fix_request(upstream_request.body, upstream_request.api, model=upstream_request.model).body,
        )
        if not _find_errors(fixed_request):
            return fixed_request, wrong[0].rule
    first, more_note = wrong[0], f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    subject = (
        f"what the hook {hook} returned" if hook and _is_about_messages(first, upstream_request) else "the request"
    )
    text = f"{first.path}: {first.message}{more_note}; run `holdfast lint` on the request, or send it with check=False"
    raise InvalidRequest(f"{subject} breaks the rule {first.rule!r} of {upstream_request.api}: {text}")


def _is_about_messages(finding: Finding, upstream_request: UpstreamRequest) -> bool:
    """Return whether ``finding`` is about the conversation, and not about the fields beside it."""
    return finding.path.startswith(f"$.{get_api_spec(upstream_request.api).messages_field}")


def _is_extension_of(body: bytes, before: CheckedRequest, own: bytes) -> bool:
    """Return whether ``body`` begins like ``before``, its last message too, and from that one on ends like ``own``."""
    expected_start, new = (
        memoryview(before.body)[: before.last_message_stop],
        memoryview(body)[before.last_message_start :],
    )
    return body.startswith(expected_start) and own.endswith(new)


def _extend_back_to_calls(messages: Sequence[SizedMessage], last: int) -> Sequence[SizedMessage] | None:
    """Return ``messages`` from ``last`` on, and before it as far as their results have their calls; nothing if too
    far.
    """
    open_call_ids = {
        result.call_id for sized_message in messages[last + 1 :] for result in sized_message.message.results
    }
    open_call_ids -= {call.id for sized_message in messages[last + 1 :] for call in sized_message.message.calls}
    for start in range(last, max(-1, last - _MAX_LOOKBACK), -1):
        message = messages[start].message
        open_call_ids |= {result.call_id for result in message.results}
        open_call_ids -= {call.id for call in message.calls}
        if not open_call_ids:
            return messages[start:]
    return None


def _find_errors(upstream_request: UpstreamRequest) -> list[Finding]:
    """Return what is wrong with the body of a request."""
    findings = validate_request(upstream_request.body, upstream_request.api, model=upstream_request.model)
    return [finding for finding in findings if finding.level == "error" and finding.rule not in _HEADER_RULES]
