"""Session files of other tools are repaired after every kind of damage that was seen."""

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

TOOLS = ("claude-code", "codex", "pi")
TOOLS_WITH_HEADER = ("codex", "pi")


def build_session(turns, form="claude-code", calls=1):
    """Build a session file of turns with a question, calls, results and an answer each; every text is unique."""
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


def parse_lines(data):
    return [json.loads(line) for line in data.split(b"\n") if line.strip()]


def list_finding_kinds(repaired):
    return [finding.kind for finding in repaired.survey.findings]


def calls_and_results(data, form):
    """Return each call and each result with the number of its line, without using the code under test."""
    calls, results = [], []
    for number, line in enumerate(parse_lines(data)):
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


@pytest.mark.parametrize("form", TOOLS)
@pytest.mark.parametrize("change", [lambda data: data, lambda data: data.replace(b"\n", b"\r\n")])
def test_repair_leaves_an_intact_file_unchanged(form, change):
    """Whatever a tool can read is not damage: CRLF line ends and blank lines are left, byte for byte."""
    data = change(build_session(3, form))
    for whole in (data, data.replace(b"\n", b"\n\n"), data + b"  "):
        repaired = repair_session_file(whole)
        assert repaired.survey.is_fine
        assert repaired.survey.format == form
        assert repaired.data == whole


def test_repair_leaves_a_call_at_the_end_open():
    """A call that waits for its result is no damage; only a call followed by other messages is."""
    data = b"".join(lines(build_session(2))[:-2])
    assert repair_session_file(data).survey.is_fine


def test_repair_leaves_results_of_one_call_on_two_branches():
    """A result on another branch is no duplicate; only results on one branch count."""
    whole = lines(build_session(1))
    other = json.loads(whole[2]) | {"uuid": "other"}
    data = b"".join([*whole, json.dumps(other).encode() + b"\n"])
    assert repair_session_file(data).survey.is_fine


# -- lines -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", TOOLS)
def test_repair_drops_a_torn_last_line(form):
    """Half a line at the end is dropped; everything before it stays unchanged."""
    data = build_session(2, form)
    whole = lines(data)
    repaired = repair_session_file(data + whole[-1][:40])
    assert list_finding_kinds(repaired) == ["torn"]
    assert repaired.survey.findings[0].line == len(whole) + 1
    assert repaired.data == data
    assert [dropped.raw for dropped in repaired.dropped_lines] == [whole[-1][:40]]


@pytest.mark.parametrize("form", TOOLS)
def test_repair_splits_welded_lines(form):
    """Two objects on one line become two lines again, with their own bytes."""
    data = build_session(2, form)
    whole = lines(data)
    welded = b"".join([*whole[:2], whole[2][:-1], *whole[3:]])
    repaired = repair_session_file(welded)
    assert list_finding_kinds(repaired) == ["welded"]
    assert repaired.data == data
    assert repaired.dropped_lines == ()


@pytest.mark.parametrize("form", TOOLS)
def test_repair_keeps_a_whole_line_after_half_a_line(form):
    """If a write continued after half a line, the whole line is kept and the half is dropped."""
    whole = lines(build_session(2, form))
    data = b"".join([*whole[:-1], whole[-1][:50], whole[-1]])
    repaired = repair_session_file(data)
    assert list_finding_kinds(repaired) == ["welded"]
    assert repaired.data == b"".join(whole)
    assert [dropped.raw for dropped in repaired.dropped_lines] == [whole[-1][:50] + whole[-1]]


@pytest.mark.parametrize("form", TOOLS)
def test_repair_never_extracts_an_object_from_half_a_line(form):
    """An object inside half a line is not made a line of its own, even if it is complete."""
    whole = lines(build_session(1, form))
    data = b"".join([*whole, whole[-1].rstrip()[:-1] + b"\n"])
    repaired = repair_session_file(data)
    assert list_finding_kinds(repaired) == ["torn"]
    assert repaired.data == b"".join(whole)


def test_repair_removes_nul_bytes():
    """NUL bytes that a lost write left are removed, and the text after them is read."""
    whole = lines(build_session(1))
    repaired = repair_session_file(b"".join([whole[0], b"\x00" * 900, *whole[1:], b"\x00" * 50 + b"\n"]))
    assert repaired.data == b"".join(whole)
    assert set(list_finding_kinds(repaired)) == {"characters", "torn"}


def test_repair_replaces_bytes_that_are_not_utf_8():
    """A line that is not UTF-8 stays, with U+FFFD for the wrong bytes; the original line is among the dropped lines."""
    data = build_session(1).replace(b"question 0 \xc3\xa9", b"question 0 \xe9")
    repaired = repair_session_file(data)
    assert list_finding_kinds(repaired) == ["encoding"]
    assert "question 0 \ufffd" in repaired.data.decode()
    assert b"\xe9" in repaired.dropped_lines[0].raw


def test_repair_replaces_a_lone_surrogate():
    """Half a surrogate pair is valid JSON but refused by every provider, so it becomes U+FFFD."""
    data = build_session(1).replace("é".encode(), b"\\ud83d")
    repaired = repair_session_file(data)
    assert list_finding_kinds(repaired) == ["characters"]
    assert "question 0 \ufffd" in repaired.data.decode()


def test_repair_removes_a_byte_order_mark():
    """No tool writes a byte order mark and most cannot read it."""
    data = build_session(1, "pi")
    repaired = repair_session_file(b"\xef\xbb\xbf" + data)
    assert list_finding_kinds(repaired) == ["encoding"]
    assert repaired.data == data


def test_repair_adds_a_missing_line_end():
    """Without a line end the tool's next line would be welded to the last one."""
    data = build_session(1)
    repaired = repair_session_file(data[:-1])
    assert list_finding_kinds(repaired) == ["no line end"]
    assert repaired.data == data


def test_repair_drops_json_that_is_no_object():
    """A number or a list is no line of any tool."""
    data = build_session(1)
    repaired = repair_session_file(data + b"17\n[1]\n")
    assert list_finding_kinds(repaired) == ["no object"] * 2
    assert repaired.data == data


# -- what the lines say together ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", TOOLS)
def test_repair_drops_a_result_without_its_call(form):
    """If a call is lost its result is dropped too, and the lines after it are linked to what came before."""
    whole = lines(build_session(2, form))
    call = next(number for number, line in enumerate(whole) if b"call_1_0" in line)
    repaired = repair_session_file(b"".join([*whole[:call], *whole[call + 1 :]]))
    assert "orphan" in list_finding_kinds(repaired)
    assert b"call_1_0" not in repaired.data
    assert any(b"output of call_1_0" in dropped.raw for dropped in repaired.dropped_lines)
    context = read_recording(repaired.data)
    texts = [entry.body.sized_message.message.text for entry in context.entries if isinstance(entry.body, MessageEntry)]
    assert [text for text in texts if text][-1] == "answer 1"
    assert context.problems == ()


@pytest.mark.parametrize("form", ["claude-code", "pi"])
def test_repair_links_a_line_with_a_missing_parent_to_the_line_before(form):
    """A link to a line that was never written would cut the conversation off."""
    whole = lines(build_session(2, form))
    lost = next(number for number, line in enumerate(whole) if b"question 1" in line)
    repaired = repair_session_file(b"".join([*whole[:lost], *whole[lost + 1 :]]))
    assert list_finding_kinds(repaired) == ["parent"]
    found = parse_lines(repaired.data)
    field, name = ("parentUuid", "uuid") if form == "claude-code" else ("parentId", "id")
    assert found[lost][field] == found[lost - 1][name]


def test_repair_accepts_a_first_line_linked_to_another_file():
    """A session continued in a new file begins with a link to the old one, which is correct."""
    whole = lines(build_session(1))
    first = json.loads(whole[0]) | {"parentUuid": "elsewhere"}
    assert repair_session_file(b"".join([json.dumps(first).encode() + b"\n", *whole[1:]])).survey.is_fine


def test_repair_never_links_a_line_to_its_descendant():
    """If lines are shuffled too, a missing parent is replaced by a line that does not lead back, so no circle
    appears.
    """
    whole = lines(build_session(2))
    child = json.dumps(json.loads(whole[4])).encode() + b"\n"
    lost = json.dumps(json.loads(whole[3]) | {"parentUuid": "nowhere"}).encode() + b"\n"
    repaired = repair_session_file(b"".join([*whole[:3], child, lost, *whole[5:]]))
    assert list_finding_kinds(repaired) == ["parent"]
    assert parse_lines(repaired.data)[4]["parentUuid"] == json.loads(whole[2])["uuid"]


def test_repair_makes_a_line_the_root_if_only_descendants_precede_it():
    """If every line before it descends from it, a line with a missing parent becomes the root."""
    whole = lines(build_session(1))
    repaired = repair_session_file(b"".join([whole[2], *whole[1:2], *whole[3:]]))
    assert list_finding_kinds(repaired) == ["parent"]
    assert parse_lines(repaired.data)[1]["parentUuid"] is None
    assert read_recording(repaired.data).problems == ()


def test_repair_answers_an_open_call_after_all_lines_of_its_answer():
    """The lines of an answer may lie apart with notes in between: an open call gets one result, after all of them."""
    answer = {"role": "assistant", "id": "msg", "model": "m"}

    def line(name, parent, kind, message=None):
        fields = {"parentUuid": parent, "sessionId": "s", "type": kind, "uuid": name, "timestamp": "2026-01-01"}
        return json.dumps(fields | ({"message": message} if message else {})).encode() + b"\n"

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
    assert list_finding_kinds(repaired) == ["unanswered"]
    assert [line["parentUuid"] for line in parse_lines(repaired.data)][5:] == [
        "q",
        parse_lines(repaired.data)[5]["uuid"],
    ]
    assert repair_session_file(repaired.data).survey.is_fine


def test_repair_answers_each_open_call_once_on_a_branch():
    """Each call of an answer that user messages interrupted gets one result, right after the call."""
    answer = {"role": "assistant", "id": "m", "model": "x", "usage": {"input_tokens": 1}}

    def line(name, parent, kind, content):
        fields = {"parentUuid": parent, "sessionId": "s", "type": kind, "uuid": name, "timestamp": "2026-01-01"}
        message = (answer if kind == "assistant" else {"role": "user"}) | {"content": content}
        return json.dumps(fields | {"message": message}).encode() + b"\n"

    first, second = ([{"type": "tool_use", "id": id_, "name": "bash", "input": {}}] for id_ in ("c1", "c2"))
    data = [
        line("u", None, "user", "go"),
        line("a", "u", "assistant", first),
        line("v", "a", "user", "wait"),
        line("b", "v", "assistant", second),
        line("w", "b", "user", "and?"),
    ]
    repaired = repair_session_file(b"".join(data))
    assert list_finding_kinds(repaired) == ["unanswered", "unanswered"]
    assert calls_and_results(repaired.data, "claude-code") == ([("c1", 1), ("c2", 4)], [("c1", 2), ("c2", 5)])
    assert repair_session_file(repaired.data).survey.is_fine


def test_repair_leaves_a_file_of_which_nothing_would_remain():
    """If every line is damaged or has lost its call, an empty file would be no repair."""
    result = lines(build_session(1))[2]
    for data in (result, result + lines(build_session(1))[0][:60]):
        repaired = repair_session_file(data)
        assert (repaired.data, repaired.survey.reason) == (data, NOTHING_LEFT_REASON)
        assert {finding.repair for finding in repaired.survey.findings} == {"left as it is"}


def test_repair_leaves_a_call_open_before_a_mere_note():
    """A note of the tool after an open call, without any message, leaves the call open."""
    whole = lines(build_session(1))[:2]
    note = {"type": "system", "uuid": "n", "parentUuid": json.loads(whole[1])["uuid"], "sessionId": "s"}
    assert repair_session_file(b"".join([*whole, json.dumps(note).encode() + b"\n"])).survey.is_fine


def test_repair_cuts_a_circle_of_parents():
    """A circle of parents would make a tool loop for ever; it is cut at its first line."""
    whole = lines(build_session(1, "pi"))
    last = json.loads(whole[-1])["id"]
    first = json.loads(whole[1]) | {"parentId": last}
    repaired = repair_session_file(b"".join([whole[0], json.dumps(first).encode() + b"\n", *whole[2:]]))
    assert list_finding_kinds(repaired) == ["circle"]
    assert parse_lines(repaired.data)[1]["parentId"] is None


def test_repair_drops_a_second_result():
    """The first result of a call stays; a second one would make every request fail."""
    whole = lines(build_session(1))
    first = json.loads(whole[2])
    second = json.dumps(first | {"uuid": "again", "parentUuid": first["uuid"]}).encode() + b"\n"
    after = json.dumps(json.loads(whole[3]) | {"parentUuid": "again"}).encode() + b"\n"
    repaired = repair_session_file(b"".join([*whole[:3], second, after, *whole[4:]]))
    assert list_finding_kinds(repaired) == ["duplicate"]
    assert parse_lines(repaired.data)[3]["parentUuid"] == first["uuid"]


def test_repair_removes_only_the_orphan_result_of_a_line():
    """Of a line with several results only the one without a call is removed."""
    whole = lines(build_session(1, calls=2))
    data = b"".join(whole).replace(b'"tool_use","id":"call_0_1"', b'"tool_use","id":"other"', 1)
    repaired = repair_session_file(
        data.replace(b'"id":"call_0_1","type":"tool_use"', b'"id":"other","type":"tool_use"', 1)
    )
    assert list_finding_kinds(repaired) == ["orphan", "unanswered"] or list_finding_kinds(repaired) == [
        "unanswered",
        "orphan",
    ]
    assert b"output of call_0_0" in repaired.data
    assert b"output of call_0_1" not in repaired.data


def test_repair_adds_an_error_result_for_an_unanswered_call():
    """Claude Code sends what it recorded, so a call without a result that other messages follow gets an error
    result.
    """
    whole = lines(build_session(2))
    repaired = repair_session_file(b"".join([*whole[:2], *whole[3:]]))
    assert "unanswered" in list_finding_kinds(repaired)
    added = parse_lines(repaired.data)[2]
    assert added["message"]["content"][0]["tool_use_id"] == "call_0_0"
    assert added["message"]["content"][0]["is_error"] is True
    assert added["message"]["content"][0]["content"] == MISSING_RESULT_TEXT
    assert added["parentUuid"] == parse_lines(repaired.data)[1]["uuid"]
    assert parse_lines(repaired.data)[3]["parentUuid"] == added["uuid"]


@pytest.mark.parametrize("form", TOOLS_WITH_HEADER)
def test_repair_adds_no_result_for_tools_that_add_their_own(form):
    """pi and Codex make up a missing result when they send, so none is written into their files."""
    whole = lines(build_session(2, form))
    result = next(number for number, line in enumerate(whole) if b"output of call_0_0" in line)
    repaired = repair_session_file(b"".join([*whole[:result], *whole[result + 1 :]]))
    assert "unanswered" not in list_finding_kinds(repaired)


def test_repair_reorders_lines_in_the_wrong_order():
    """pi continues from its last line and Codex reads in order, so a line that belongs after another is moved there."""
    for form in TOOLS_WITH_HEADER:
        whole = lines(build_session(1, form))
        result = next(number for number, line in enumerate(whole) if b"output of" in line)
        call = next(number for number, line in enumerate(whole) if b"call_0_0" in line)
        swapped = list(whole)
        swapped[call], swapped[result] = swapped[result], swapped[call]
        repaired = repair_session_file(b"".join(swapped))
        assert set(list_finding_kinds(repaired)) == {"order"}
        calls, results = calls_and_results(repaired.data, form)
        assert calls[0][1] < results[0][1]
        assert sorted(lines(repaired.data)) == sorted(whole)


def test_repair_drops_a_copied_codex_line():
    """Codex sends every line; a line written twice with the same fraction of a second is a copy."""
    whole = [line.replace(b".000Z", b".125Z") for line in lines(build_session(1, "codex"))]
    twice = [line for line in whole for _ in range(2 if b"question" in line else 1)]
    repaired = repair_session_file(b"".join(twice))
    assert list_finding_kinds(repaired) == ["duplicate"]
    assert repaired.data == b"".join(whole)


@pytest.mark.parametrize("at", [None, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z"])
def test_repair_keeps_repeated_messages_that_time_cannot_tell_apart(at):
    """A user may send "continue" often: without a precise time or an id to tell lines apart nothing is dropped."""
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
    data = b"".join(json.dumps(line).encode() + b"\n" for line in every)
    repaired = repair_session_file(data, "codex")
    assert list_finding_kinds(repaired) == []
    assert repaired.data is data or repaired.data == data


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_repair_rejects_utf_16_with_advice(encoding):
    """No tool continues a file that PowerShell wrote in UTF-16; the error says to write it anew as UTF-8."""
    with pytest.raises(FormatError, match=r"UTF-16, and sessions are UTF-8; write it anew"):
        repair_session_file(build_session(1).decode().encode(encoding))


# -- files that are left alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", TOOLS_WITH_HEADER)
def test_repair_leaves_a_file_without_its_header(form):
    """A tool that needs a header cannot open the file, however its lines are repaired, so it stays as it is."""
    data = b"".join(lines(build_session(1, form))[1:]) + b'{"torn'
    repaired = repair_session_file(data)
    assert repaired.survey.reason == NO_HEADER_REASON
    assert list_finding_kinds(repaired) == ["torn"]
    assert repaired.data == data


@pytest.mark.parametrize(
    "data",
    [b"", b"\n \n", b"words\n", b"SQLite format 3\x00" + b"\x00" * 600, bytes(range(256)) * 8, b'{"a":1}\n',
     b'{"model":"m","messages":[{"role":"user","content":"hi"}]}', b"[1,2]", b"\xff\xfe{\x00}\x00"],
)  # fmt: skip
def test_repair_rejects_a_file_that_is_no_session(data):
    """A file that is no session raises an error that says what it is, and is never rewritten."""
    with pytest.raises(FormatError):
        repair_session_file(data)


@pytest.mark.parametrize("indent", [None, 2])
def test_repair_rejects_an_opencode_export(indent):
    """The error says what can be done with it, whether the export is on one line or many."""
    data = json.dumps({"info": {"id": "ses_1"}, "messages": []}, indent=indent).encode()
    with pytest.raises(FormatError, match="export it again, or import it"):
        repair_session_file(data)


def test_repair_accepts_an_older_gemini_cli_session():
    """A session that is one JSON value has no lines to repair."""
    data = json.dumps({"sessionId": "s", "projectHash": "p", "startTime": "x", "messages": []}, indent=2).encode()
    assert repair_session_file(data).survey.is_fine


def test_repair_leaves_a_deeply_nested_line():
    """A line nested too deeply to be inspected is no damage."""
    deep = b'{"type":"x","uuid":"d","sessionId":"s","a":' + b"[" * 5_000 + b"]" * 5_000 + b"}\n"
    data = build_session(1) + deep
    assert repair_session_file(data).data == data


@pytest.mark.parametrize("line", [b'{"' * 60_000, b"[" * 90_000, b'{"a":' * 30_000, b'{"a":"' + b"x" * 3_000_000])
def test_repair_drops_a_hostile_line_quickly(line):
    """A line made to be slow to parse is dropped within the time limit."""
    data = build_session(1)
    assert repair_session_file(data + line + b"\n").data == data


# -- anything ----------------------------------------------------------------------------------------------------------

DAMAGES = ("tear", "weld", "fuse", "drop", "double", "swap", "nul", "byte")


def damage_lines(whole, damage, at, cut):
    """Return the lines of a file with one of them damaged."""
    if len(whole) < 2:
        return whole
    at = at % (len(whole) - 1) + 1
    line = whole[at]
    place = cut % max(1, len(line) - 2) + 1
    rest = [*whole[:at], *whole[at + 1 :]]
    if damage == "swap":
        rest.insert(cut % len(rest) + 1, line)
        return rest
    replacement = {
        "tear": [line[:place] + b"\n"],
        "weld": [line[:-1]],
        "fuse": [line[:place]],
        "drop": [],
        "double": [line, line],
        "nul": [b"\x00" * (cut % 40 + 1) + line],
        "byte": [line[:place] + b"\xff" + line[place:]],
    }[damage]
    return [*whole[:at], *replacement, *whole[at + 1 :]]


@given(
    st.sampled_from(TOOLS),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.tuples(st.sampled_from(DAMAGES), st.integers(0, 60), st.integers(0, 600)), max_size=5),
    st.booleans(),
)
@settings(max_examples=250)
def test_repair_of_any_damage_reads_pairs_and_is_idempotent(form, turns, calls, damages, ended):
    """However a file is torn, welded, shortened, doubled and shuffled, the result reads, pairs, and needs no second
    repair.
    """
    whole = lines(build_session(turns, form, calls))
    before = set(whole)
    for damage, at, cut in damages:
        whole = damage_lines(whole, damage, at, cut)
    data = b"".join(whole)
    data = data if ended else data.rstrip(b"\n")
    try:
        repaired = repair_session_file(data)
    except FormatError:
        assert not before & {line.rstrip(b"\n") + b"\n" for line in data.split(b"\n")}
        return
    _assert_no_line_lost(data, repaired, before)
    if repaired.survey.reason:
        assert repaired.data == data
        return
    again = repair_session_file(repaired.data)
    assert again.survey.findings == ()
    assert again.data == repaired.data
    _assert_calls_paired(repaired.data, form)


def _assert_no_line_lost(data, repaired, before):
    """Assert that every intact line of the damaged file is in the repaired one or among the dropped lines."""
    dropped_bytes = b"\n".join(dropped.raw for dropped in repaired.dropped_lines)
    texts = [json.dumps(line, sort_keys=True) for line in _parse_without_links(repaired.data)]
    for line in before:
        if line.rstrip(b"\n") in data and line.rstrip(b"\n") not in dropped_bytes:
            (content,) = _parse_without_links(line)
            assert json.dumps(content, sort_keys=True) in texts or repaired.survey.reason


def _parse_without_links(data):
    """Return the decoded lines without their links, which a repair may change."""
    links = ("parentUuid", "parentId")
    out = []
    for line in data.split(b"\n"):
        try:
            out.append({key: value for key, value in json.loads(line).items() if key not in links})
        except ValueError:
            continue
    return out


def _assert_calls_paired(data, form):
    recording = read_recording(data)
    assert not [
        entry
        for entry in recording.entries
        if isinstance(entry.body, NoteEntry) and entry.body.reason.endswith("a note")
    ]
    calls, results = calls_and_results(data, form)
    known = dict(calls)
    assert all(id_ in known for id_, _ in results)
    if form == "codex":
        assert len({id_ for id_, _ in results}) == len(results)
        assert all(known[id_] < number for id_, number in results)
    if form != "codex":
        _assert_links_valid(data, form)


def _assert_links_valid(data, form):
    field, name = ("parentUuid", "uuid") if form == "claude-code" else ("parentId", "id")
    found = [line for line in parse_lines(data) if line.get("type") != "session"]
    ids = [line[name] for line in found]
    for place, line in enumerate(found):
        above = line[field]
        first = not any(found[before][name] == above for before in range(len(found)))
        assert above is None or above in ids or (first and place == 0)
        if form == "pi" and above in ids:
            assert ids.index(above) <= place
