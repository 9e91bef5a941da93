"""Paginated rollouts: numbered lines, and forks whose history begins in another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.cli.files.joined_rollouts import JoinedRollouts
from holdfast.cli.files.recordings import iter_recordings
from holdfast.formats import export_bytes, get_full_history_entries, read_recording
from holdfast.formats.base import list_model_calls
from holdfast.formats.repair.repair_session import repair_session_file
from holdfast.state.entries import MessageEntry
from tests.support.example_counts import choose

PARENT, FORK, GRANDCHILD = "0a-parent", "0b-fork", "0c-grandchild"


def make_line(ordinal, kind, payload):
    return {"timestamp": f"2026-10-02T00:00:{ordinal % 60:02}.5Z", "ordinal": ordinal, "type": kind, "payload": payload}


def header(ordinal=0, thread=PARENT, base=None, mode="paginated"):
    fields = {"id": thread, "cwd": "/w", "history_mode": mode, "history_base": base}
    return make_line(ordinal, "session_meta", fields)


def said(ordinal, words, role="user"):
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": words}]
    return make_line(ordinal, "response_item", {"type": "message", "role": role, "content": content})


def item(ordinal, kind, **fields):
    return make_line(ordinal, "response_item", {"type": kind, **fields})


def event(ordinal, kind, **fields):
    return make_line(ordinal, "event_msg", {"type": kind, **fields})


def base(thread, end, **more):
    return {"thread_id": thread, "end_ordinal_exclusive": end, **more}


def build_file(*lines):
    return b"".join(json.dumps(item).encode() + b"\n" for item in lines)


def list_ordinals(data):
    return [json.loads(item).get("ordinal") for item in data.splitlines()]


def list_texts(recording):
    """Return the conversation in short form: texts, calls as !id, results as =id."""
    out = []
    for entry in get_full_history_entries(recording):
        if isinstance(entry.body, MessageEntry):
            message = entry.body.sized_message.message
            marks = [f"!{call.id}" for call in message.calls] + [f"={result.call_id}" for result in message.results]
            out += [*filter(None, [message.text]), *marks]
    return out


TALK = (
    header(),
    event(1, "task_started"),
    said(2, "fix it"),
    event(3, "item_completed", item={"type": "UserMessage"}),
    said(4, "done", "assistant"),
    event(5, "item_completed", item={"type": "AgentMessage"}),
    event(6, "task_complete"),
)


# -- repair ------------------------------------------------------------------------------------------------------------


def test_repair_leaves_a_sound_paginated_rollout_alone():
    """Numbers without a gap are no damage, also in the file of a fork, which begins at its base."""
    for data in (build_file(*TALK), build_file(header(40, FORK, base(PARENT, 40)), said(41, "go on"))):
        assert repair_session_file(data).data == data


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (None, "the line has no number (ordinal)"),
        (-3, "the number (ordinal) of the line is negative"),
        (2**63, "the number (ordinal) of the line is too large"),
        (1.5, "the number (ordinal) of the line is no whole number"),
        ("7", "the number (ordinal) of the line is no number"),
    ],
)
def test_repair_says_what_is_wrong_with_a_number(number, expected):
    """A number that cannot be one is told from a line without a number; both are numbered anew."""
    lines = [header(), said(1, "go"), said(2, "on")]
    lines[2]["ordinal"] = number
    repaired = repair_session_file(build_file(*lines))
    assert [finding.description for finding in repaired.survey.findings] == [expected]
    assert list_ordinals(repaired.data) == [0, 1, 2]


def test_repair_numbers_lines_on_after_a_number_that_is_used_again():
    """One number that is used twice is one finding; every line stays, with its content, and the order too."""
    lines = [*TALK[:5], event(4, "thread_settings_applied"), event(5, "task_complete"), said(6, "more")]
    repaired = repair_session_file(build_file(*lines))
    assert [(finding.line, finding.kind) for finding in repaired.survey.findings] == [(6, "ordinal")]
    assert list_ordinals(repaired.data) == list(range(8))
    payloads = [json.loads(item)["payload"] for item in repaired.data.splitlines()]
    assert payloads == [line["payload"] for line in lines]
    assert repair_session_file(repaired.data).survey.is_fine


def test_repair_closes_the_gap_that_a_torn_line_leaves():
    """A line that had to be left out leaves a gap in the numbers, at which Codex would stop."""
    data = build_file(*TALK)
    lines = data.splitlines(keepends=True)
    lines[3] = lines[3][:30] + b"\n"
    repaired = repair_session_file(b"".join(lines))
    assert list_ordinals(repaired.data) == list(range(6))
    assert repair_session_file(repaired.data).survey.is_fine


def test_repair_does_not_number_a_rollout_that_is_not_paginated():
    """Files of older versions have no numbers, and numbers in a file that is read without them do not matter."""
    legacy = build_file(header(mode="legacy"), said(1, "a"), said(1, "b"))
    bare = build_file(*[{name: value for name, value in line.items() if name != "ordinal"} for line in TALK])
    for data in (legacy, bare.replace(b"paginated", b"legacy")):
        assert repair_session_file(data).data == data


_LINES = st.lists(
    st.tuples(st.sampled_from(["said", "event", "call", "result", "torn"]), st.integers(0, 3), st.integers(-2, 2)),
    max_size=12,
)


@given(_LINES)
@settings(max_examples=choose(quick=50, ci=200, thorough=5_000), deadline=None)
@pytest.mark.counts
def test_repair_of_any_numbers_gives_numbers_without_a_gap(steps):
    """Whatever the numbers are and whichever lines are torn: afterwards they go on by one, and nothing else changed."""
    rows = []
    for number, (kind, id_, offset) in enumerate(steps, 1):
        ordinal = max(0, number + offset)
        row = {
            "said": said(ordinal, f"words {number}"),
            "event": event(ordinal, "item_completed", number=number),
            "call": item(ordinal, "function_call", name="f", arguments="{}", call_id=f"c{id_}"),
            "result": item(ordinal, "function_call_output", call_id=f"c{id_}", output="ok"),
            "torn": said(ordinal, "torn"),
        }[kind]
        encoded = json.dumps(row).encode()
        rows.append(encoded[:-7] if kind == "torn" else encoded)
    data = b"\n".join([json.dumps(header()).encode(), *rows]) + b"\n"
    repaired = repair_session_file(data)
    assert list_ordinals(repaired.data) == list(range(len(repaired.data.splitlines())))
    assert repair_session_file(repaired.data).data == repaired.data
    for number, (kind, _, _) in enumerate(steps, 1):
        if kind == "said":
            assert f'"words {number}"'.encode() in repaired.data
        if kind == "event":
            assert any(json.loads(row)["payload"].get("number") == number for row in repaired.data.splitlines())


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lines", [TALK, (header(40, FORK, base(PARENT, 40)), said(41, "go on"), said(42, "ok", "assistant"))]
)
def test_export_writes_no_paginated_rollout(lines):
    """The events between the messages are not kept, so what is written claims no numbers and no history elsewhere."""
    recording = read_recording(build_file(*lines))
    exported = export_bytes(recording, "codex")
    assert list_texts(read_recording(exported)) == list_texts(recording)
    assert set(list_ordinals(exported)) == {None}
    payload = json.loads(exported.splitlines()[0])["payload"]
    assert "history_mode" not in payload
    assert "history_base" not in payload
    assert read_recording(exported).problems == ()


# -- forks -------------------------------------------------------------------------------------------------------------


def write_rollout(folder: Path, thread: str, *lines, name=None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or f"rollout-2026-10-02T00-00-00-{thread}.jsonl")
    path.write_bytes(build_file(*lines))
    return path


def read_file(path: Path, *, lazily=False):
    progress = (lambda _done, _size: None) if lazily else None
    (recording,) = [source.read() for source in iter_recordings(str(path), progress=progress)]
    return recording


FORK_LINES = (header(5, FORK, base(PARENT, 5)), said(6, "another way"), said(7, "sure", "assistant"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder of Codex with a thread and a fork of it, on other days."""
    write_rollout(tmp_path / "sessions/2026/10/01", PARENT, *TALK)
    write_rollout(tmp_path / "sessions/2026/10/02", FORK, *FORK_LINES)
    return tmp_path


def test_a_fork_is_read_with_what_it_goes_on_from(home: Path):
    """The lines of the other rollout before the ordinal come first; the session is the fork's."""
    fork = next((home / "sessions").rglob(f"*{FORK}.jsonl"))
    recording = read_file(fork)
    assert list_texts(recording) == ["fix it", "done", "another way", "sure"]
    assert (recording.session, recording.problems) == (FORK, ())
    assert len(list_model_calls(recording)) == 2


def test_a_fork_that_is_read_on_demand_gives_the_same_entries(home: Path):
    """Texts that stay in several files are read from the right one."""
    fork = next((home / "sessions").rglob(f"*{FORK}.jsonl"))
    whole = list(read_file(fork).entries)
    for source in iter_recordings(str(fork), progress=lambda _done, _size: None):
        assert list(source.read().entries) == whole


def test_a_fork_of_a_fork_is_read_through_both(home: Path):
    """Each rollout counts only up to where the next one begins, also before the place of an earlier fork."""
    folder = home / "archived_sessions"
    late = write_rollout(folder, GRANDCHILD, header(7, GRANDCHILD, base(FORK, 7)), said(8, "third"))
    assert list_texts(read_file(late)) == ["fix it", "done", "another way", "third"]
    early = write_rollout(folder, "0d-early", header(3, "0d-early", base(FORK, 3)), said(4, "fourth"))
    assert list_texts(read_file(early)) == ["fix it", "fourth"]


def test_a_rollout_of_another_name_is_found_in_the_same_folder(tmp_path: Path):
    """Copies of rollouts have any name; their headers tell."""
    write_rollout(tmp_path, PARENT, *TALK, name="copy.jsonl")
    fork = write_rollout(tmp_path, FORK, *FORK_LINES, name="fork.jsonl")
    assert list_texts(read_file(fork)) == ["fix it", "done", "another way", "sure"]


@pytest.mark.parametrize("lazily", [True, False])
def test_a_fork_without_the_other_rollout_is_read_and_told(tmp_path: Path, lazily: bool):
    """What is there is read, and the problem names the thread that is missing."""
    fork = write_rollout(tmp_path, FORK, *FORK_LINES)
    recording = read_file(fork, lazily=lazily)
    (problem,) = recording.problems
    assert PARENT in problem.message
    assert "without its beginning" in problem.message


def test_a_fork_of_a_fork_without_its_root_is_told_as_partial(home: Path):
    """Half a history in the middle would look like a whole one, so it is left out and told."""
    next((home / "sessions").rglob(f"*{PARENT}.jsonl")).unlink()
    late = write_rollout(home / "sessions", GRANDCHILD, header(7, GRANDCHILD, base(FORK, 7)), said(8, "third"))
    recording = read_file(late)
    assert list_texts(recording) == ["third"]
    assert "without its beginning" in recording.problems[0].message


def test_rollouts_that_lead_round_in_a_circle_are_read_alone(tmp_path: Path):
    """A header that leads back to its own file ends the search."""
    first = write_rollout(tmp_path, "aa", header(5, "aa", base("bb", 5)), said(6, "one"))
    write_rollout(tmp_path, "bb", header(5, "bb", base("aa", 5)), said(6, "two"))
    assert list_texts(read_file(first)) == ["one"]


def test_ids_of_a_header_are_no_paths(tmp_path: Path):
    """An id with separators or patterns is not looked for by name."""
    (tmp_path / "secret.jsonl").write_bytes(build_file(header(0, "other"), said(1, "secret")))
    folder = tmp_path / "in"
    for id_ in ("../secret", "*", "/etc/passwd"):
        fork = write_rollout(folder, "fork", header(5, "fork", base(id_, 5)), said(6, "go on"))
        assert list_texts(read_file(fork)) == ["go on"]


def test_joined_rollouts_closes_what_it_opened(home: Path):
    """The files that were opened for a fork are closed with it; the fork's own stays its caller's."""
    fork = next((home / "sessions").rglob(f"*{FORK}.jsonl"))
    with fork.open("rb") as stream:
        with JoinedRollouts(fork, stream) as rollouts:
            assert rollouts.is_joined
            data = b"".join(rollouts.iter_lines())
            assert len(data) == rollouts.size
            assert rollouts.read_at(0, rollouts.size) == data[: len(rollouts.read_at(0, rollouts.size))]
        assert not stream.closed
        assert stream.tell() >= 0


# -- interrupted turns -------------------------------------------------------------------------------------------------


def test_a_call_of_an_aborted_turn_is_interrupted_and_not_gone():
    """A call is recorded only when it is complete: what was aborted is its run, so requests have both."""
    data = build_file(
        header(),
        said(1, "go"),
        item(2, "function_call", name="exec", arguments='{"cmd":"ls"}', call_id="c1"),
        event(3, "turn_aborted"),
        said(4, "again"),
    )
    for api in ("anthropic", "openai-chat", "openai-responses"):
        assert export_bytes(read_recording(data), api).count(b'"c1"') == 2
