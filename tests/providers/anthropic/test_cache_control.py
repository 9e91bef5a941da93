"""Cache breakpoints in a request."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.messages.parts import Text, ToolResult
from holdfast.providers.anthropic import cache_control as breakpoints
from holdfast.providers.anthropic.cache_control import list_message_breakpoint_ttls
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.edits import Edit, Span
from holdfast.state.plan import PlanOptions
from holdfast.state.view import apply_part_edits

FIVE = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def build_text_block(words, **more):
    return {"type": "text", "text": words, **more}


def build_request(*contents, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return json.dumps({"system": "s", **fields, "messages": messages}).encode()


def render_with_breakpoints(raw, *markers, setup=False):
    parsed_request = parse_request(raw)
    return render_request(
        parsed_request, parsed_request.messages, PlanOptions(cache_breakpoints=markers, setup_breakpoint=setup)
    )


def list_breakpoint_ttls(raw):
    """Return the lifetimes of the breakpoints of each message."""
    return [list_message_breakpoint_ttls(json.dumps(message).encode()) for message in json.loads(raw)["messages"]]


def test_render_request_puts_a_breakpoint_on_string_content():
    """String content becomes a list with one text block that has the breakpoint."""
    out = json.loads(render_with_breakpoints(build_request("a", "b", "c"), 2))
    assert out["messages"][2]["content"] == [build_text_block("c", cache_control=FIVE)]
    assert out["messages"][0]["content"] == "a"


def test_render_request_puts_a_breakpoint_on_the_last_allowed_block():
    """Thinking and blank text cannot carry a breakpoint; without an allowed block nothing changes."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    raw = build_request("a", [build_text_block("b"), thinking, build_text_block(" ")], "c")
    out = json.loads(render_with_breakpoints(raw, 1))
    assert out["messages"][1]["content"] == [build_text_block("b", cache_control=FIVE), thinking, build_text_block(" ")]
    only = build_request("a", [thinking], "")
    assert render_with_breakpoints(only, 1, 2) is only


def test_render_request_keeps_an_existing_breakpoint():
    """A body that has the wanted breakpoint already is returned as the same object."""
    raw = build_request([build_text_block("a", cache_control=FIVE)], system=[build_text_block("s", cache_control=FIVE)])
    assert render_with_breakpoints(raw, 0, setup=True) is raw


def test_render_request_puts_a_breakpoint_on_the_setup():
    """The breakpoint of the setup is at the end of the system prompt, or on the last tool if there is none."""
    out = json.loads(render_with_breakpoints(build_request("a"), setup=True))
    assert out["system"] == [build_text_block("s", cache_control=FIVE)]
    tools = [{"name": "x", "input_schema": {"type": "object"}}, {"name": "y", "input_schema": {"type": "object"}}]
    out = json.loads(render_with_breakpoints(build_request("a", system="", tools=tools), setup=True))
    assert [tool.get("cache_control") for tool in out["tools"]] == [None, FIVE]
    bare = b'{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}'
    assert render_with_breakpoints(bare, setup=True) is bare


def test_render_request_never_exceeds_four_breakpoints():
    """Existing breakpoints count; of the wanted ones the first has priority, then the setup, then the others in
    order.
    """
    standing = [build_text_block("a", cache_control=FIVE), build_text_block("b", cache_control=FIVE)]
    out = render_with_breakpoints(build_request(standing, "b", "c", "d"), 3, 1, 2, setup=True)
    assert list_breakpoint_ttls(out) == [["5m", "5m"], [], [], ["5m"]]
    assert json.loads(out)["system"] == [build_text_block("s", cache_control=FIVE)]


def test_render_request_counts_inner_and_automatic_breakpoints():
    """Breakpoints inside tool results and the automatic one count towards the limit."""
    inner = [build_text_block("x", cache_control=FIVE), build_text_block("y", cache_control=FIVE)]
    raw = build_request([{"type": "tool_result", "tool_use_id": "t", "content": inner}], "b", "c", cache_control=FIVE)
    assert list_breakpoint_ttls(render_with_breakpoints(raw, 2, 1, 0)) == [["5m", "5m"], [], ["5m"]]
    assert list_breakpoint_ttls(render_with_breakpoints(raw, 1, 2, 0)) == [["5m", "5m"], ["5m"], []]


def test_render_request_uses_one_hour_before_a_one_hour_breakpoint():
    """A breakpoint before a one-hour one lives an hour too; one after it lives five minutes."""
    raw = build_request("a", [build_text_block("b", cache_control=HOUR)], "c")
    out = render_with_breakpoints(raw, 0, 2, setup=True)
    assert list_breakpoint_ttls(out) == [["1h"], ["1h"], ["5m"]]
    assert json.loads(out)["system"][0]["cache_control"] == HOUR
    assert list_breakpoint_ttls(render_with_breakpoints(build_request("a", cache_control=HOUR), 0)) == [["1h"]]


def test_render_request_adds_no_breakpoints_for_chat():
    """Chat caches automatically, so breakpoint options change nothing."""
    raw = b'{"messages":[{"role":"user","content":"a"}],"stop":"x"}'
    assert render_with_breakpoints(raw, 0, setup=True) is raw


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("life", [FIVE, HOUR])
def test_render_request_moves_a_breakpoint_to_a_replaced_result(life, inside):
    """A client's breakpoint on a result, or on text inside it, moves to the text shown in place of that result."""
    outer, inner = ({}, {"cache_control": life}) if inside else ({"cache_control": life}, {})
    block = {"type": "tool_result", "tool_use_id": "t", "content": [build_text_block("long", **inner)], **outer}
    parsed_request = measure_parsed_request(
        parse_request(build_request("a", "b", [block, build_text_block("and", x=1)]))
    )
    replacement = ToolResult("t", "", (Text("short"),))
    sized_messages = [
        *parsed_request.messages[:2],
        apply_part_edits(parsed_request.messages[2], [Edit(Span(2, 3, 0), (replacement,))]),
    ]
    sent = json.loads(render_request(parsed_request, sized_messages))["messages"][2]["content"]
    assert sent[0] == {"type": "tool_result", "tool_use_id": "t", "content": "short", "cache_control": life}
    assert sent[1] == build_text_block("and", x=1)


def test_render_request_moves_a_breakpoint_to_replaced_text():
    """The breakpoint moves to the replacement, except to blank text, which may not have one."""
    parsed_request = measure_parsed_request(
        parse_request(build_request([build_text_block("long words", cache_control=FIVE)]))
    )
    for words, stays in (("short", True), (" ", False)):
        sized_messages = [apply_part_edits(parsed_request.messages[0], [Edit(Span(0, 1, 0), (Text(words),))])]
        assert list_breakpoint_ttls(render_request(parsed_request, sized_messages)) == [["5m"] if stays else []]


def build_logged_messages(count):
    """Build logged messages of ``count`` requests, each sent with a breakpoint; every other message is a result."""
    one = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [build_text_block("x", cache_control=HOUR)],
        "is_error": False,
    }
    blocks = [
        build_text_block("a", cache_control=FIVE),
        {"type": "tool_use", "id": "t", "name": "n", "input": {"cache_control": 1}},
    ]
    contents = [[one] if index % 2 else blocks for index in range(count)]
    return measure_parsed_request(parse_request(build_request(*contents))).messages


def test_build_request_body_drops_breakpoints_of_logged_messages():
    """Breakpoints that logged messages were sent with are dropped, so that the wanted ones fit the limit."""
    out = build_request_body(
        "anthropic", "m", build_logged_messages(8), options=PlanOptions(cache_breakpoints=(7, 5), setup_breakpoint=True)
    )
    assert list_breakpoint_ttls(out) == [[], [], [], [], [], ["5m"], [], ["5m"]]
    first, second = json.loads(out)["messages"][:2]
    assert first["content"][0] == build_text_block("a")
    assert first["content"][1]["input"] == {"cache_control": 1}
    assert second["content"] == [
        {"type": "tool_result", "tool_use_id": "t", "content": [build_text_block("x")], "is_error": False}
    ]


def test_render_request_keeps_the_newest_breakpoints_within_the_limit():
    """A client's body with logged messages added has four breakpoints at most, the newest and that of the setup."""
    parsed_request = measure_parsed_request(
        parse_request(
            build_request(
                [build_text_block("now", cache_control=FIVE)], system=[build_text_block("s", cache_control=FIVE)]
            )
        )
    )
    out = render_request(parsed_request, [*build_logged_messages(6), *parsed_request.messages])
    assert list_breakpoint_ttls(out) == [[], [], [], [], ["5m"], ["1h"], ["5m"]]


def test_render_request_keeps_surplus_breakpoints_of_a_client():
    """A body to which nothing was added is returned unchanged, even with too many breakpoints."""
    raw = build_request(*[[build_text_block("a", cache_control=FIVE)]] * 6)
    parsed_request = parse_request(raw)
    assert render_request(parsed_request, parsed_request.messages) is raw


@pytest.mark.parametrize("position", [-1, 5])
def test_render_request_ignores_breakpoint_positions_out_of_range(position):
    """A position without a message adds no breakpoint."""
    raw = build_request("a")
    assert render_with_breakpoints(raw, position) is raw


_LIFE = st.sampled_from([None, FIVE, HOUR])
_WORDS = st.sampled_from(["", " ", "a"])


@given(st.lists(st.lists(st.tuples(_WORDS, _LIFE), max_size=3), max_size=5), st.sets(st.integers(0, 5)), st.booleans())
def test_render_request_breakpoints_add_no_finding(contents, markers, setup):
    """Whatever breakpoints exist already, the added ones break no rule about breakpoints."""
    blocks = [
        [build_text_block(words, **({"cache_control": life} if life else {})) for words, life in content]
        for content in contents
    ]
    raw = build_request(*blocks)
    before = {finding.rule for finding in validate_request(raw, "anthropic") if "cache" in finding.rule}
    after = {
        finding.rule
        for finding in validate_request(render_with_breakpoints(raw, *markers, setup=setup), "anthropic")
        if "cache" in finding.rule
    }
    assert after <= before


def test_add_message_breakpoint_marks_the_last_of_joined_messages():
    """A provider's compaction may share raw bytes with the message after it: the last message gets the breakpoint."""
    first, last = (
        '{"role":"assistant","content":[{"type":"compaction","cache_control":null}]}',
        '{"role": "user","content":[]}',
    )
    both = f"{first},{last}".encode()
    assert breakpoints.add_message_breakpoint(both) == both
    second = json.dumps({"role": "user", "content": [build_text_block("rules")]})
    new = breakpoints.add_message_breakpoint(f"{first} ,{second}".encode())
    assert new.startswith(first.encode())
    assert json.loads(b"[" + new + b"]")[1]["content"] == [build_text_block("rules", cache_control=FIVE)]
    assert (list_message_breakpoint_ttls(new), list_message_breakpoint_ttls(both)) == (["5m"], [])


def test_render_request_puts_no_breakpoint_on_a_deferred_tool():
    """The API refuses a breakpoint on a tool with defer_loading, so the last tool before it gets it, or none does."""
    schema = {"type": "object"}
    loaded = {"name": "ls", "input_schema": schema}
    deferred = {"name": "mcp__a__b", "input_schema": schema, "defer_loading": True}
    body = json.loads(render_with_breakpoints(build_request("a", system="", tools=[loaded, deferred]), setup=True))
    assert [bool(tool.get("cache_control")) for tool in body["tools"]] == [True, False]
    only = build_request("a", system="", tools=[deferred])
    assert render_with_breakpoints(only, setup=True) is only
