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


def text(words, **more):
    return {"type": "text", "text": words, **more}


def request(*contents, **fields):
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": content} for index, content in enumerate(contents)]
    return json.dumps({"system": "s", **fields, "messages": messages}).encode()


def marked(raw, *markers, frame=False):
    lens = parse_request(raw)
    return render_request(lens, lens.messages, PlanOptions(cache_breakpoints=markers, setup_breakpoint=frame))


def lives(raw):
    """Return the lifetimes of breakpoints, message by message."""
    return [list_message_breakpoint_ttls(json.dumps(message).encode()) for message in json.loads(raw)["messages"]]


def test_a_string_becomes_a_marked_text():
    """A breakpoint on a plain string makes it a list with one marked text."""
    out = json.loads(marked(request("a", "b", "c"), 2))
    assert out["messages"][2]["content"] == [text("c", cache_control=FIVE)]
    assert out["messages"][0]["content"] == "a"


def test_thinking_and_empty_text_are_stepped_over():
    """The breakpoint goes to the last block that may carry it; where there is none nothing changes."""
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    raw = request("a", [text("b"), thinking, text(" ")], "c")
    out = json.loads(marked(raw, 1))
    assert out["messages"][1]["content"] == [text("b", cache_control=FIVE), thinking, text(" ")]
    only = request("a", [thinking], "")
    assert marked(only, 1, 2) is only


def test_a_breakpoint_that_stands_is_enough():
    """A body that has the wanted breakpoint already is not touched."""
    raw = request([text("a", cache_control=FIVE)], system=[text("s", cache_control=FIVE)])
    assert marked(raw, 0, frame=True) is raw


def test_the_frame_gets_one():
    """The frame's breakpoint stands on the end of the system prompt, or on the last tool where there is none."""
    out = json.loads(marked(request("a"), frame=True))
    assert out["system"] == [text("s", cache_control=FIVE)]
    tools = [{"name": "x", "input_schema": {}}, {"name": "y", "input_schema": {}}]
    out = json.loads(marked(request("a", system="", tools=tools), frame=True))
    assert [tool.get("cache_control") for tool in out["tools"]] == [None, FIVE]
    bare = b'{"messages":[{"role":"user","content":[{"type":"tool_result","tool_use_id":"t"}]}]}'
    assert marked(bare, frame=True) is bare


def test_never_more_than_four():
    """Those that stand are counted; of ours the first one goes first, then the frame, then the others in turn."""
    standing = [text("a", cache_control=FIVE), text("b", cache_control=FIVE)]
    out = marked(request(standing, "b", "c", "d"), 3, 1, 2, frame=True)
    assert lives(out) == [["5m", "5m"], [], [], ["5m"]]
    assert json.loads(out)["system"] == [text("s", cache_control=FIVE)]


def test_breakpoints_inside_results_and_automatic_ones_count():
    """A breakpoint inside a tool result and the automatic one take their places too."""
    inner = [text("x", cache_control=FIVE), text("y", cache_control=FIVE)]
    raw = request([{"type": "tool_result", "tool_use_id": "t", "content": inner}], "b", "c", cache_control=FIVE)
    assert lives(marked(raw, 2, 1, 0)) == [["5m", "5m"], [], ["5m"]]
    assert lives(marked(raw, 1, 2, 0)) == [["5m", "5m"], ["5m"], []]


def test_no_shorter_one_before_an_hour():
    """Before a one-hour breakpoint ours lives an hour too, behind it five minutes."""
    raw = request("a", [text("b", cache_control=HOUR)], "c")
    out = marked(raw, 0, 2, frame=True)
    assert lives(out) == [["1h"], ["1h"], ["5m"]]
    assert json.loads(out)["system"][0]["cache_control"] == HOUR
    assert lives(marked(request("a", cache_control=HOUR), 0)) == [["1h"]]


def test_chat_has_none():
    """Chat caches by itself: options for breakpoints change nothing."""
    raw = b'{"messages":[{"role":"user","content":"a"}],"stop":"x"}'
    assert marked(raw, 0, frame=True) is raw


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("life", [FIVE, HOUR])
def test_a_marker_moves_to_what_replaces_its_block(life, inside):
    """A client's breakpoint on a result, or on words inside it, stands on what is shown in place of that result."""
    outer, inner = ({}, {"cache_control": life}) if inside else ({"cache_control": life}, {})
    block = {"type": "tool_result", "tool_use_id": "t", "content": [text("long", **inner)], **outer}
    lens = measure_parsed_request(parse_request(request("a", "b", [block, text("and", x=1)])))
    put = ToolResult("t", "", (Text("short"),))
    slots = [*lens.messages[:2], apply_part_edits(lens.messages[2], [Edit(Span(2, 3, 0), (put,))])]
    sent = json.loads(render_request(lens, slots))["messages"][2]["content"]
    assert sent[0] == {"type": "tool_result", "tool_use_id": "t", "content": "short", "cache_control": life}
    assert sent[1] == text("and", x=1)


def test_a_marker_on_words_moves_with_them():
    """The same for a user's words; what becomes empty carries none, since none may stand there."""
    lens = measure_parsed_request(parse_request(request([text("long words", cache_control=FIVE)])))
    for words, stays in (("short", True), (" ", False)):
        slots = [apply_part_edits(lens.messages[0], [Edit(Span(0, 1, 0), (Text(words),))])]
        assert lives(render_request(lens, slots)) == [["5m"] if stays else []]


def told(count):
    """Return messages of as many requests, each said with a breakpoint, as a log has them; every other is a result."""
    one = {"type": "tool_result", "tool_use_id": "t", "content": [text("x", cache_control=HOUR)], "is_error": False}
    blocks = [
        text("a", cache_control=FIVE),
        {"type": "tool_use", "id": "t", "name": "n", "input": {"cache_control": 1}},
    ]
    contents = [[one] if index % 2 else blocks for index in range(count)]
    return measure_parsed_request(parse_request(request(*contents))).messages


def test_a_body_of_other_requests_words_has_none_of_their_markers():
    """Of what a log's messages were said with nothing stays but their words: the breakpoints asked for have room."""
    out = build_request_body(
        "anthropic", "m", told(8), options=PlanOptions(cache_breakpoints=(7, 5), setup_breakpoint=True)
    )
    assert lives(out) == [[], [], [], [], [], ["5m"], [], ["5m"]]
    first, second = json.loads(out)["messages"][:2]
    assert first["content"][0] == text("a")
    assert first["content"][1]["input"] == {"cache_control": 1}
    assert second["content"] == [{"type": "tool_result", "tool_use_id": "t", "content": [text("x")], "is_error": False}]


def test_the_newest_markers_stay_beside_those_of_the_frame():
    """A client's body that also shows messages of the log has four breakpoints at most, and its own are the newest."""
    lens = measure_parsed_request(
        parse_request(request([text("now", cache_control=FIVE)], system=[text("s", cache_control=FIVE)]))
    )
    out = render_request(lens, [*told(6), *lens.messages])
    assert lives(out) == [[], [], [], [], ["5m"], ["1h"], ["5m"]]


def test_a_client_s_own_body_keeps_what_it_has_too_many():
    """What nothing was put beside is the client's to answer for, byte for byte."""
    raw = request(*[[text("a", cache_control=FIVE)]] * 6)
    lens = parse_request(raw)
    assert render_request(lens, lens.messages) is raw


@pytest.mark.parametrize("position", [-1, 5])
def test_positions_outside_are_ignored(position):
    """A position without a message marks nothing."""
    raw = request("a")
    assert marked(raw, position) is raw


_LIFE = st.sampled_from([None, FIVE, HOUR])
_WORDS = st.sampled_from(["", " ", "a"])


@given(st.lists(st.lists(st.tuples(_WORDS, _LIFE), max_size=3), max_size=5), st.sets(st.integers(0, 5)), st.booleans())
def test_ours_never_break_a_rule(contents, markers, frame):
    """Whatever stands already, our breakpoints add no finding about breakpoints."""
    blocks = [[text(words, **({"cache_control": life} if life else {})) for words, life in one] for one in contents]
    raw = request(*blocks)
    before = {one.rule for one in validate_request(raw, "anthropic") if "cache" in one.rule}
    after = {
        one.rule for one in validate_request(marked(raw, *markers, frame=frame), "anthropic") if "cache" in one.rule
    }
    assert after <= before


def test_of_several_messages_in_one_stretch_the_last_is_marked():
    """A provider's compaction may stand in one stretch with what follows it: the last message gets the breakpoint."""
    first, last = (
        '{"role":"assistant","content":[{"type":"compaction","cache_control":null}]}',
        '{"role": "user","content":[]}',
    )
    both = f"{first},{last}".encode()
    assert breakpoints.add_message_breakpoint(both) == both
    second = json.dumps({"role": "user", "content": [text("rules")]})
    new = breakpoints.add_message_breakpoint(f"{first} ,{second}".encode())
    assert new.startswith(first.encode())
    assert json.loads(b"[" + new + b"]")[1]["content"] == [text("rules", cache_control=FIVE)]
    assert (list_message_breakpoint_ttls(new), list_message_breakpoint_ttls(both)) == (["5m"], [])
