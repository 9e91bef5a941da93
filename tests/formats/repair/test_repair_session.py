"""Session files of other tools, broken in every way that was met, and mended."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import FormatError
from holdfast.formats import export_bytes, read_recording
from holdfast.formats.repair.repair_session import repair_session_file
from holdfast.formats.repair.survey import NO_HEADER_REASON, NOTHING_LEFT_REASON
from holdfast.formats.repair.tools import MISSING_RESULT_TEXT
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.entries import AnswerEntry, Entry, MessageEntry, NoteEntry, Usage

LOGS = ("claude-code", "codex", "pi")
HEADED = ("codex", "pi")


def session(turns, form="claude-code", calls=1):
    """Return a session of so many turns as ``form`` has it: words, calls, results, an answer; every text is unique."""
    entries, parent = [], None

    def add(name, body):
        nonlocal parent
        entries.append(Entry(name, parent, body, len(entries) + 1, 1_700_000_000_000 + 1_000 * len(entries)))
        parent = name

    for turn in range(turns):
        ids = [f"call_{turn}_{number}" for number in range(calls)]
        add(f"u{turn}", MessageEntry(build_sized_message(Message.from_text("user", f"question {turn} é \u2028"))))
        add(
            f"a{turn}",
            MessageEntry(
                build_sized_message(Message("assistant", tuple(ToolCall(id_, "bash", '{"a":1}') for id_ in ids)))
            ),
        )
        add(f"a{turn}+", AnswerEntry("", Usage(100 + turn, 5)))
        results = tuple(ToolResult(id_, "bash", (Text(f"output of {id_}"),)) for id_ in ids)
        add(f"r{turn}", MessageEntry(build_sized_message(Message("tool", results))))
        add(f"z{turn}", MessageEntry(build_sized_message(Message.from_text("assistant", f"answer {turn}"))))
        add(f"z{turn}+", AnswerEntry("", Usage(200 + turn, 5)))
    return export_bytes(entries, form)


def lines(data):
    return data.splitlines(keepends=True) if b"\r" not in data else [line + b"\n" for line in data.split(b"\n")[:-1]]


def said(data):
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]


def kinds(repaired):
    return [one.kind for one in repaired.survey.findings]


def calls_and_results(data, form):
    """Return each call and each result with the number of its line, read without a word of the code that is tested."""
    calls, results = [], []
    for number, line in enumerate(said(data)):
        item = line.get("payload") or line.get("message") or {}
        if form == "codex":
            if line["type"] == "response_item" and "call_id" in item:
                (calls if item["type"].endswith("_call") else results).append((item["call_id"], number))
        elif item.get("role") == "toolResult":
            results.append((item["toolCallId"], number))
        elif isinstance(item.get("content"), list):
            for block in item["content"]:
                if block["type"] in ("tool_use", "toolCall"):
                    calls.append((block["id"], number))
                elif block["type"] == "tool_result":
                    results.append((block["tool_use_id"], number))
    return calls, results


# -- files with nothing wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LOGS)
@pytest.mark.parametrize("change", [lambda data: data, lambda data: data.replace(b"\n", b"\r\n")])
def test_a_file_with_nothing_wrong_stays_as_it_is(form, change):
    """What a tool can read is not damage: line ends of Windows and blank lines are left, byte for byte."""
    data = change(session(3, form))
    for whole in (data, data.replace(b"\n", b"\n\n"), data + b"  "):
        repaired = repair_session_file(whole)
        assert repaired.survey.is_fine
        assert repaired.survey.format == form
        assert repaired.data == whole


def test_a_call_at_the_end_is_left_open():
    """A call that waits for its result is no damage, only one that was passed over is."""
    data = b"".join(lines(session(2))[:-2])
    assert repair_session_file(data).survey.is_fine


def test_the_same_call_on_two_branches_is_left():
    """A result on another branch is no second one: only results on one way count."""
    whole = lines(session(1))
    other = json.loads(whole[2]) | {"uuid": "other"}
    data = b"".join([*whole, json.dumps(other).encode() + b"\n"])
    assert repair_session_file(data).survey.is_fine


# -- lines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LOGS)
def test_a_torn_line_is_left_out(form):
    """Half a line at the end goes, whole; what stands before it stays as it was."""
    data = session(2, form)
    whole = lines(data)
    repaired = repair_session_file(data + whole[-1][:40])
    assert kinds(repaired) == ["torn"]
    assert repaired.survey.findings[0].line == len(whole) + 1
    assert repaired.data == data
    assert [one.raw for one in repaired.dropped_lines] == [whole[-1][:40]]


@pytest.mark.parametrize("form", LOGS)
def test_welded_lines_are_parted(form):
    """Two objects on one line are two lines again, with their own bytes."""
    data = session(2, form)
    whole = lines(data)
    welded = b"".join([*whole[:2], whole[2][:-1], *whole[3:]])
    repaired = repair_session_file(welded)
    assert kinds(repaired) == ["welded"]
    assert repaired.data == data
    assert repaired.dropped_lines == ()


@pytest.mark.parametrize("form", LOGS)
def test_a_line_behind_half_a_line_is_found(form):
    """Where a write went on behind half a line, the whole line is kept and the half goes."""
    whole = lines(session(2, form))
    data = b"".join([*whole[:-1], whole[-1][:50], whole[-1]])
    repaired = repair_session_file(data)
    assert kinds(repaired) == ["welded"]
    assert repaired.data == b"".join(whole)
    assert [one.raw for one in repaired.dropped_lines] == [whole[-1][:50] + whole[-1]]


@pytest.mark.parametrize("form", LOGS)
def test_half_a_line_is_never_taken_for_a_whole_one(form):
    """An object inside half a line is not made a line of its own, however whole it is."""
    whole = lines(session(1, form))
    data = b"".join([*whole, whole[-1].rstrip()[:-1] + b"\n"])
    repaired = repair_session_file(data)
    assert kinds(repaired) == ["torn"]
    assert repaired.data == b"".join(whole)


def test_nul_bytes_go():
    """NUL bytes that a lost write left are taken away; what stands behind them is read."""
    whole = lines(session(1))
    repaired = repair_session_file(b"".join([whole[0], b"\x00" * 900, *whole[1:], b"\x00" * 50 + b"\n"]))
    assert repaired.data == b"".join(whole)
    assert set(kinds(repaired)) == {"characters", "torn"}


def test_bytes_that_are_no_characters_are_replaced():
    """A line that is not UTF-8 stays, with U+FFFD where the bytes are wrong; the line as it was is handed out."""
    data = session(1).replace(b"question 0 \xc3\xa9", b"question 0 \xe9")
    repaired = repair_session_file(data)
    assert kinds(repaired) == ["encoding"]
    assert "question 0 \ufffd" in repaired.data.decode()
    assert b"\xe9" in repaired.dropped_lines[0].raw


def test_half_a_surrogate_pair_is_replaced():
    """Half a surrogate pair is JSON and refused by every provider, so it becomes U+FFFD."""
    data = session(1).replace("é".encode(), b"\\ud83d")
    repaired = repair_session_file(data)
    assert kinds(repaired) == ["characters"]
    assert "question 0 \ufffd" in repaired.data.decode()


def test_a_byte_order_mark_goes():
    """A byte order mark, which no tool writes and most cannot read, is taken away."""
    data = session(1, "pi")
    repaired = repair_session_file(b"\xef\xbb\xbf" + data)
    assert kinds(repaired) == ["encoding"]
    assert repaired.data == data


def test_a_missing_line_end_is_added():
    """Without a line end the tool's next line would be welded to the last one."""
    data = session(1)
    repaired = repair_session_file(data[:-1])
    assert kinds(repaired) == ["no line end"]
    assert repaired.data == data


def test_json_that_is_no_object_goes():
    """A number or a list is no line of any tool."""
    data = session(1)
    repaired = repair_session_file(data + b"17\n[1]\n")
    assert kinds(repaired) == ["no object"] * 2
    assert repaired.data == data


# -- what the lines say together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", LOGS)
def test_a_result_without_its_call_goes(form):
    """Where a call is lost its result goes too, and what hung on them hangs on what stood before."""
    whole = lines(session(2, form))
    call = next(number for number, line in enumerate(whole) if b"call_1_0" in line)
    repaired = repair_session_file(b"".join([*whole[:call], *whole[call + 1 :]]))
    assert "orphan" in kinds(repaired)
    assert b"call_1_0" not in repaired.data
    assert any(b"output of call_1_0" in one.raw for one in repaired.dropped_lines)
    context = read_recording(repaired.data)
    texts = [entry.body.sized_message.message.text for entry in context.entries if isinstance(entry.body, MessageEntry)]
    assert [text for text in texts if text][-1] == "answer 1"
    assert context.problems == ()


@pytest.mark.parametrize("form", ["claude-code", "pi"])
def test_a_missing_parent_gives_way_to_the_line_before(form):
    """A link to a line that was never written would cut the conversation off; it goes to the line before it."""
    whole = lines(session(2, form))
    lost = next(number for number, line in enumerate(whole) if b"question 1" in line)
    repaired = repair_session_file(b"".join([*whole[:lost], *whole[lost + 1 :]]))
    assert kinds(repaired) == ["parent"]
    found = said(repaired.data)
    field, name = ("parentUuid", "uuid") if form == "claude-code" else ("parentId", "id")
    assert found[lost][field] == found[lost - 1][name]


def test_the_first_line_may_go_on_from_another_file():
    """A session that was continued in a new file begins with a link to the old one, which is right."""
    whole = lines(session(1))
    first = json.loads(whole[0]) | {"parentUuid": "elsewhere"}
    assert repair_session_file(b"".join([json.dumps(first).encode() + b"\n", *whole[1:]])).survey.is_fine


def test_a_line_is_never_hung_on_what_hangs_on_it():
    """Where lines are shuffled too, a lost parent gives way to a line that does not lead back: no circle is made."""
    whole = lines(session(2))
    child = json.dumps(json.loads(whole[4])).encode() + b"\n"
    lost = json.dumps(json.loads(whole[3]) | {"parentUuid": "nowhere"}).encode() + b"\n"
    repaired = repair_session_file(b"".join([*whole[:3], child, lost, *whole[5:]]))
    assert kinds(repaired) == ["parent"]
    assert said(repaired.data)[4]["parentUuid"] == json.loads(whole[2])["uuid"]


def test_with_nothing_to_hang_on_a_line_begins_the_conversation():
    """Where all that stands before a line hangs on it, its lost parent gives way to none."""
    whole = lines(session(1))
    repaired = repair_session_file(b"".join([whole[2], *whole[1:2], *whole[3:]]))
    assert kinds(repaired) == ["parent"]
    assert said(repaired.data)[1]["parentUuid"] is None
    assert read_recording(repaired.data).problems == ()


def test_lines_of_one_answer_are_one():
    """The lines of an answer lie apart, with notes of the tool's between: an open call is answered once, behind all."""
    answer = {"role": "assistant", "id": "msg", "model": "m"}

    def line(name, parent, kind, message=None):
        told = {"parentUuid": parent, "sessionId": "s", "type": kind, "uuid": name, "timestamp": "2026-01-01"}
        return json.dumps(told | ({"message": message} if message else {})).encode() + b"\n"

    call = [{"type": "tool_use", "id": "c", "name": "bash", "input": {}}]
    data = [
        line("u", None, "user", {"role": "user", "content": "go"}),
        line("a", "u", "assistant", answer | {"content": [{"type": "text", "text": "well"}]}),
        line("p", "a", "progress"),
        line("b", "p", "assistant", answer | {"content": call}),
        line("q", "b", "progress"),
        line("v", "q", "user", {"role": "user", "content": "and?"}),
    ]
    repaired = repair_session_file(b"".join(data))
    assert kinds(repaired) == ["unanswered"]
    assert [one["parentUuid"] for one in said(repaired.data)][5:] == ["q", said(repaired.data)[5]["uuid"]]
    assert repair_session_file(repaired.data).survey.is_fine


def test_a_call_is_answered_once_on_a_way():
    """An answer that others interrupted is passed over twice; each of its calls gets one result, behind the call."""
    answer = {"role": "assistant", "id": "m", "model": "x", "usage": {"input_tokens": 1}}

    def line(name, parent, kind, content):
        told = {"parentUuid": parent, "sessionId": "s", "type": kind, "uuid": name, "timestamp": "2026-01-01"}
        message = (answer if kind == "assistant" else {"role": "user"}) | {"content": content}
        return json.dumps(told | {"message": message}).encode() + b"\n"

    first, second = ([{"type": "tool_use", "id": id_, "name": "bash", "input": {}}] for id_ in ("c1", "c2"))
    data = [
        line("u", None, "user", "go"),
        line("a", "u", "assistant", first),
        line("v", "a", "user", "wait"),
        line("b", "v", "assistant", second),
        line("w", "b", "user", "and?"),
    ]
    repaired = repair_session_file(b"".join(data))
    assert kinds(repaired) == ["unanswered", "unanswered"]
    assert calls_and_results(repaired.data, "claude-code") == ([("c1", 1), ("c2", 4)], [("c1", 2), ("c2", 5)])
    assert repair_session_file(repaired.data).survey.is_fine


def test_a_file_of_which_nothing_would_be_left_stays():
    """Where every line is damaged or has lost its call, an empty file would be no repair."""
    result = lines(session(1))[2]
    for data in (result, result + lines(session(1))[0][:60]):
        repaired = repair_session_file(data)
        assert (repaired.data, repaired.survey.reason) == (data, NOTHING_LEFT_REASON)
        assert {one.repair for one in repaired.survey.findings} == {"left as it is"}


def test_only_words_pass_a_call_over():
    """A note of the tool's behind an open call, and nothing said, leaves the call open."""
    whole = lines(session(1))[:2]
    note = {"type": "system", "uuid": "n", "parentUuid": json.loads(whole[1])["uuid"], "sessionId": "s"}
    assert repair_session_file(b"".join([*whole, json.dumps(note).encode() + b"\n"])).survey.is_fine


def test_parents_in_a_circle_are_cut():
    """A circle of parents would hold a tool for ever; it is opened at its first line."""
    whole = lines(session(1, "pi"))
    last = json.loads(whole[-1])["id"]
    first = json.loads(whole[1]) | {"parentId": last}
    repaired = repair_session_file(b"".join([whole[0], json.dumps(first).encode() + b"\n", *whole[2:]]))
    assert kinds(repaired) == ["circle"]
    assert said(repaired.data)[1]["parentId"] is None


def test_a_second_result_goes():
    """The first result of a call stands; a second one behind it makes every request fail."""
    whole = lines(session(1))
    first = json.loads(whole[2])
    second = json.dumps(first | {"uuid": "again", "parentUuid": first["uuid"]}).encode() + b"\n"
    after = json.dumps(json.loads(whole[3]) | {"parentUuid": "again"}).encode() + b"\n"
    repaired = repair_session_file(b"".join([*whole[:3], second, after, *whole[4:]]))
    assert kinds(repaired) == ["duplicate"]
    assert said(repaired.data)[3]["parentUuid"] == first["uuid"]


def test_only_the_bad_part_of_a_line_goes():
    """Of a line with several results only the one without a call is taken out."""
    whole = lines(session(1, calls=2))
    data = b"".join(whole).replace(b'"tool_use","id":"call_0_1"', b'"tool_use","id":"other"', 1)
    repaired = repair_session_file(
        data.replace(b'"id":"call_0_1","type":"tool_use"', b'"id":"other","type":"tool_use"', 1)
    )
    assert kinds(repaired) == ["orphan", "unanswered"] or kinds(repaired) == ["unanswered", "orphan"]
    assert b"output of call_0_0" in repaired.data
    assert b"output of call_0_1" not in repaired.data


def test_a_call_that_was_passed_over_gets_an_error_result():
    """Claude Code sends what it recorded: a call without a result that was passed over gets an honest one."""
    whole = lines(session(2))
    repaired = repair_session_file(b"".join([*whole[:2], *whole[3:]]))
    assert "unanswered" in kinds(repaired)
    made = said(repaired.data)[2]
    assert made["message"]["content"][0]["tool_use_id"] == "call_0_0"
    assert made["message"]["content"][0]["is_error"] is True
    assert made["message"]["content"][0]["content"] == MISSING_RESULT_TEXT
    assert made["parentUuid"] == said(repaired.data)[1]["uuid"]
    assert said(repaired.data)[3]["parentUuid"] == made["uuid"]


@pytest.mark.parametrize("form", HEADED)
def test_other_tools_answer_open_calls_themselves(form):
    """pi and Codex make up a missing result when they send, so none is written into their files."""
    whole = lines(session(2, form))
    result = next(number for number, line in enumerate(whole) if b"output of call_0_0" in line)
    repaired = repair_session_file(b"".join([*whole[:result], *whole[result + 1 :]]))
    assert "unanswered" not in kinds(repaired)


def test_lines_in_the_wrong_order_are_put_right():
    """pi goes on from its last line and Codex reads in order: what belongs behind another line is moved there."""
    for form in HEADED:
        whole = lines(session(1, form))
        result = next(number for number, line in enumerate(whole) if b"output of" in line)
        call = next(number for number, line in enumerate(whole) if b"call_0_0" in line)
        swapped = list(whole)
        swapped[call], swapped[result] = swapped[result], swapped[call]
        repaired = repair_session_file(b"".join(swapped))
        assert set(kinds(repaired)) == {"order"}
        calls, results = calls_and_results(repaired.data, form)
        assert calls[0][1] < results[0][1]
        assert sorted(lines(repaired.data)) == sorted(whole)


def test_a_copy_of_a_line_is_said_once():
    """Codex reads every line as said; a line that was written twice, at the same part of a second, is a copy."""
    whole = [line.replace(b".000Z", b".125Z") for line in lines(session(1, "codex"))]
    twice = [line for line in whole for _ in range(2 if b"question" in line else 1)]
    repaired = repair_session_file(b"".join(twice))
    assert kinds(repaired) == ["duplicate"]
    assert repaired.data == b"".join(whole)


@pytest.mark.parametrize("at", [None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z"])
def test_what_was_said_twice_is_no_copy(at):
    """A user says "continue" as often as he likes: where no time and no id tells lines apart nothing is left out."""
    first = {"id": "01a1fba8-787c-7371-9fd1-399c6c23d351", "timestamp": at or "2025-05-07T17:24:21.597Z"}
    kinds_of = (("user", "input_text", "continue"), ("assistant", "output_text", "Done."))
    items = [
        {"type": "message", "role": role, "content": [{"type": kind, "text": text}]} for role, kind, text in kinds_of
    ]
    if at is None:
        every = [first | {"instructions": ""}, *items * 3]
    else:
        every = [{"timestamp": at, "type": "session_meta", "payload": first}]
        every += [{"timestamp": at, "type": "response_item", "payload": item} for item in items * 3]
    data = b"".join(json.dumps(one).encode() + b"\n" for one in every)
    repaired = repair_session_file(data, "codex")
    assert kinds(repaired) == []
    assert repaired.data is data or repaired.data == data


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_another_encoding_is_told(encoding):
    """What PowerShell wrote in UTF-16 no tool goes on with: that is said, and nothing is called fine."""
    with pytest.raises(FormatError, match=r"UTF-16, and sessions are UTF-8; write it anew"):
        repair_session_file(session(1).decode().encode(encoding))


# -- files that are left alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", HEADED)
def test_without_a_header_nothing_is_rewritten(form):
    """A tool that wants a header cannot open the file however its lines are mended, so it stays as it is."""
    data = b"".join(lines(session(1, form))[1:]) + b'{"torn'
    repaired = repair_session_file(data)
    assert repaired.survey.reason == NO_HEADER_REASON
    assert kinds(repaired) == ["torn"]
    assert repaired.data == data


@pytest.mark.parametrize(
    "data",
    [b"", b"\n \n", b"words\n", b"SQLite format 3\x00" + b"\x00" * 600, bytes(range(256)) * 8, b'{"a":1}\n',
     b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', b"[1,2]", b"\xff\xfe{\x00}\x00"],
)  # fmt: skip
def test_what_is_no_session_is_refused(data):
    """A file that is no session is an error with what it is, never rewritten."""
    with pytest.raises(FormatError):
        repair_session_file(data)


@pytest.mark.parametrize("indent", [None, 2])
def test_what_opencode_exported_is_no_file_of_its_own(indent):
    """It is told as such, with what can be done with it, on one line or many."""
    data = json.dumps({"info": {"id": "ses_1"}, "messages": []}, indent=indent).encode()
    with pytest.raises(FormatError, match="export it again, or import it"):
        repair_session_file(data)


def test_an_older_session_of_gemini_cli_is_fine():
    """A session that is one JSON value has no lines to mend."""
    data = json.dumps({"sessionId": "s", "projectHash": "p", "startTime": "x", "messages": []}, indent=2).encode()
    assert repair_session_file(data).survey.is_fine


def test_a_deep_line_is_left():
    """A line that is nested deeper than can be looked at is no damage."""
    deep = b'{"type":"x","uuid":"d","sessionId":"s","a":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
    data = session(1) + deep
    assert repair_session_file(data).data == data


@pytest.mark.parametrize("line", [b'{"' * 60_000, b"[" * 90_000, b'{"a":' * 30_000, b'{"a":"' + b"x" * 3_000_000])
def test_a_hostile_line_costs_little(line):
    """A line made to be slow is left out in a moment."""
    data = session(1)
    assert repair_session_file(data + line + b"\n").data == data


# -- anything ----------------------------------------------------------------------------------------------------------

WOUNDS = ("tear", "weld", "fuse", "drop", "double", "swap", "nul", "byte")


def wounded(whole, wound, at, cut):
    """Return the lines of a file with one of them broken."""
    if len(whole) < 2:
        return whole
    at = at % (len(whole) - 1) + 1
    line = whole[at]
    place = cut % max(1, len(line) - 2) + 1
    rest = [*whole[:at], *whole[at + 1 :]]
    if wound == "swap":
        rest.insert(cut % len(rest) + 1, line)
        return rest
    mine = {
        "tear": [line[:place] + b"\n"],
        "weld": [line[:-1]],
        "fuse": [line[:place]],
        "drop": [],
        "double": [line, line],
        "nul": [b"\x00" * (cut % 40 + 1) + line],
        "byte": [line[:place] + b"\xff" + line[place:]],
    }[wound]
    return [*whole[:at], *mine, *whole[at + 1 :]]


@given(
    st.sampled_from(LOGS),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(WOUNDS), st.integers(0, 60), st.integers(0, 600)), max_size=5),
    st.booleans(),
)
@settings(max_examples=250)
def test_whatever_is_broken_is_mended_for_good(form, turns, calls, wounds, ended):
    """However a file is torn, welded, shortened, doubled and shuffled: it reads, pairs, and needs no second repair."""
    whole = lines(session(turns, form, calls))
    before = set(whole)
    for wound, at, cut in wounds:
        whole = wounded(whole, wound, at, cut)
    data = b"".join(whole)
    data = data if ended else data.rstrip(b"\n")
    try:
        repaired = repair_session_file(data)
    except FormatError:
        assert not before & {line.rstrip(b"\n") + b"\n" for line in data.split(b"\n")}
        return
    _check_words(data, repaired, before)
    if repaired.survey.reason:
        assert repaired.data == data
        return
    again = repair_session_file(repaired.data)
    assert again.survey.findings == ()
    assert again.data == repaired.data
    _check_reading(repaired.data, form)


def _check_words(data, repaired, before):
    """Every line that is whole in the damaged file is in the repaired one, or handed out with a reason."""
    handed = b"\n".join(one.raw for one in repaired.dropped_lines)
    texts = [json.dumps(line, sort_keys=True) for line in _contents(repaired.data)]
    for line in before:
        if line.rstrip(b"\n") in data and line.rstrip(b"\n") not in handed:
            (content,) = _contents(line)
            assert json.dumps(content, sort_keys=True) in texts or repaired.finish_survey.reason


def _contents(data):
    """Return what the lines say without their links, which a repair may change."""
    links = ("parentUuid", "parentId")
    out = []
    for line in data.split(b"\n"):
        try:
            out.append({key: value for key, value in json.loads(line).items() if key not in links})
        except ValueError:
            continue
    return out


def _check_reading(data, form):
    recording = read_recording(data)
    assert not [
        one for one in recording.entries if isinstance(one.body, NoteEntry) and one.body.reason.endswith("a note")
    ]
    calls, results = calls_and_results(data, form)
    known = dict(calls)
    assert all(id_ in known for id_, _ in results)
    if form == "codex":
        assert len({id_ for id_, _ in results}) == len(results)
        assert all(known[id_] < number for id_, number in results)
    if form != "codex":
        _check_links(data, form)


def _check_links(data, form):
    field, name = ("parentUuid", "uuid") if form == "claude-code" else ("parentId", "id")
    found = [line for line in said(data) if line.get("type") != "session"]
    ids = [line[name] for line in found]
    for place, line in enumerate(found):
        above = line[field]
        first = not any(found[before][name] == above for before in range(len(found)))
        assert above is None or above in ids or (first and place == 0)
        if form == "pi" and above in ids:
            assert ids.index(above) <= place
