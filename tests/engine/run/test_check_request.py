"""Which requests count as checked already: the same prefix, only client messages behind it, the same model."""

from __future__ import annotations

import json

from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.run.check_request import check_request, is_already_checked, make_check_baseline
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request

API, MODEL = "anthropic", "claude-sonnet-4-5"
DIALECT = get_target(API, MODEL).dialect
FIRST = [
    Message.from_text("user", "Mend the fares."),
    Message.from_text("assistant", "Which?"),
    Message.from_text("user", "All."),
]
CUT_MESSAGE = SizedMessage(Message.from_text("user", "Mend. (cut)"), api=API)


def parse_client_body(*messages):
    """Return the parsed body of a client with these messages."""
    return parse_request(build_request_body(API, MODEL, [*map(SizedMessage, messages)], setup_fields={"max_tokens": 9}))


def build_upstream_request(parsed, *sized_messages):
    """Return the request with ``sized_messages`` in place of the body's own."""
    return UpstreamRequest(API, render_request(parsed, sized_messages), MODEL)


def replace_first(parsed, first=CUT_MESSAGE):
    """Return the messages of ``parsed`` with another first one."""
    return (first, *parsed.messages[1:])


def make_previous_request(first=CUT_MESSAGE):
    """Return a checked request whose first message is cut."""
    parsed = parse_client_body(*FIRST)
    return make_check_baseline(
        build_upstream_request(parsed, *replace_first(parsed, first)), replace_first(parsed, first)
    )


LATER_BODY = parse_client_body(*FIRST, Message.from_text("assistant", "Done."), Message.from_text("user", "Thanks."))


def test_is_already_checked_accepts_new_client_messages():
    """The same prefix with the client's own messages behind it is not checked again."""
    assert is_already_checked(
        build_upstream_request(LATER_BODY, *replace_first(LATER_BODY)),
        replace_first(LATER_BODY),
        LATER_BODY,
        make_previous_request(),
        DIALECT,
    )


def test_is_already_checked_rejects_another_prefix():
    """A prefix of the same length with other bytes was never checked."""
    other = SizedMessage(Message.from_text("user", "Mend! (cut)"), api=API)
    assert not is_already_checked(
        build_upstream_request(LATER_BODY, *replace_first(LATER_BODY, other)),
        replace_first(LATER_BODY, other),
        LATER_BODY,
        make_previous_request(),
        DIALECT,
    )


def test_is_already_checked_rejects_new_messages_of_ours():
    """A message that differs from the client's is checked, even if it breaks no rule."""
    slots = (*replace_first(LATER_BODY)[:-1], SizedMessage(Message.from_text("user", "Thanks!"), api=API))
    assert not is_already_checked(
        build_upstream_request(LATER_BODY, *slots), slots, LATER_BODY, make_previous_request(), DIALECT
    )


def test_is_already_checked_rejects_changed_fields():
    """A changed or added field, before or after the messages, needs a new check."""
    for field in (b'"max_tokens":8', b'"max_tokens":9,"top_k":4'):
        parsed = parse_request(LATER_BODY.body.replace(b'"max_tokens":9', field))
        assert not is_already_checked(
            build_upstream_request(parsed, *replace_first(parsed)),
            replace_first(parsed),
            parsed,
            make_previous_request(),
            DIALECT,
        )


def test_is_already_checked_rejects_another_model():
    """The model can come from the URL, so the body does not show it."""
    request = build_upstream_request(LATER_BODY, *replace_first(LATER_BODY))
    assert not is_already_checked(
        replace(request, model="claude-opus-5-5"),
        replace_first(LATER_BODY),
        LATER_BODY,
        make_previous_request(),
        DIALECT,
    )


def test_is_already_checked_rejects_client_messages_that_break_a_rule():
    """An error in the client's own messages can be fixed, so the whole request is checked."""
    parsed = parse_client_body(*FIRST, Message.from_text("assistant", "Done."), Message("user", (Text(" "),)))
    assert not is_already_checked(
        build_upstream_request(parsed, *replace_first(parsed)),
        replace_first(parsed),
        parsed,
        make_previous_request(),
        DIALECT,
    )


def test_is_already_checked_includes_the_calls_of_new_results():
    """Results alone would break a rule, so the check goes back to the calls that they answer."""
    calls = tuple(ToolCall(f"toolu_{number}", "read", "{}") for number in range(3))
    results = tuple(ToolResult(call.id, content=(Text("x"),), name=call.name) for call in calls)
    first = parse_client_body(Message.from_text("user", "Read."), Message("assistant", calls), Message("user", results))
    parsed = parse_client_body(
        *[slot.message for slot in first.messages],
        Message.from_text("assistant", "Read."),
        Message.from_text("user", "Go on."),
    )
    checked = make_check_baseline(build_upstream_request(first, *replace_first(first)), replace_first(first))
    assert is_already_checked(
        build_upstream_request(parsed, *replace_first(parsed)), replace_first(parsed), parsed, checked, DIALECT
    )


def test_make_check_baseline_returns_none_for_a_changed_last_message():
    """Without the client's last message nothing shows where later client messages begin."""
    parsed = parse_client_body(*FIRST)
    slots = (*parsed.messages[:-1], CUT_MESSAGE)
    assert make_check_baseline(build_upstream_request(parsed, *slots), slots) is None


def test_check_request_leaves_options_by_model_to_the_server():
    """A gateway may serve a model of OpenAI's name by other rules, so its options do not stop a request."""
    body = b'{"model": "gpt-6.2-sol", "temperature": 0.2, "messages": [{"role": "user", "content": "Mend."}]}'
    request = UpstreamRequest("openai-chat", body, "gpt-6.2-sol")
    assert check_request(request, DIALECT).upstream_request is request


def test_check_request_leaves_options_alone_that_it_does_not_check():
    """A message that has to be fixed is no reason to change options that only some servers of the model refuse."""
    orphan = {"role": "tool", "tool_call_id": "call_1", "content": "no such call"}
    fields = {"model": "gpt-5", "temperature": 0.2, "messages": [{"role": "user", "content": "go"}, orphan]}
    body = json.dumps(fields).encode()
    result = check_request(UpstreamRequest("openai-chat", body, "gpt-5"), get_target("openai-chat", "gpt-5").dialect)
    assert result.broken_message_rule
    fixed = json.loads(result.upstream_request.body)
    assert fixed["temperature"] == 0.2
    assert "no such call" in json.dumps(fixed)
