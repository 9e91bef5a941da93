"""``holdfast compact --stdin``: what it keeps of a host's transcript, and what it says of wrong input."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import conversation_strategy
from open_work_scripts import WORK_SCRIPTS, build_exchange
from transcripts import build_transcript, list_call_ids, list_result_ids

from holdfast.cli import holdfast_command
from holdfast.formats import get_branch_entries, read_recording
from holdfast.hosts.compact_transcript import MAX_EXTRACT_SHARE, MAX_EXTRACT_TOKENS, MAX_TAIL_TOKENS
from holdfast.messages.message import Message
from holdfast.planning.extract.previous_summary import EXTRACT_OPENING
from holdfast.planning.open_work.section import OPEN_WORK_HEADING
from holdfast.state.entries import MessageEntry

SESSION = Path(__file__).parents[2] / "examples" / "long-session.jsonl"
RULES = ("Never touch main.py.", "Always answer in French.", "Do not add any dependency.")


def compact(transcript):
    """Run the command on a transcript and return its answer."""
    result = CliRunner().invoke(holdfast_command, ["compact", "--stdin", "--json"], json.dumps(transcript))
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def fail(data):
    """Run the command on wrong input and return the error that it prints."""
    result = CliRunner().invoke(holdfast_command, ["compact", "--stdin"], data)
    assert result.exit_code == 2
    assert result.stdout == ""
    return json.loads(result.stderr)["error"]


def read_example_messages():
    """Return the messages of the example session."""
    recording = read_recording(SESSION.read_bytes())
    bodies = [entry.body for entry in get_branch_entries(recording)]
    return [body.sized_message.message for body in bodies if isinstance(body, MessageEntry)]


def build_work(count):
    """Return ``count`` reads of files, with their results."""
    messages = []
    for number in range(count):
        lines = "\n".join(f"value_{number}_{line} = compute({line * number})" for line in range(40))
        messages += build_exchange("Read", {"file_path": f"src/module_{number}.py"}, lines)
    return messages


def assert_contract(transcript, answer):
    """Assert what holds for every transcript: nothing grows, and what is kept is its end, unchanged."""
    messages = transcript["messages"]
    if "why" in answer:
        assert answer["messages"] == messages
        assert answer["tokensAfter"] == answer["tokensBefore"]
        return
    extract, *kept = answer["messages"]
    assert extract.keys() == {"role", "text", "toolUses"}
    assert extract["text"].startswith(EXTRACT_OPENING)
    assert kept == messages[len(messages) - len(kept) :]
    assert set(list_result_ids(kept)) <= set(list_call_ids(kept))
    assert answer["tokensAfter"] < answer["tokensBefore"]
    assert len(json.dumps(answer["messages"])) < len(json.dumps(messages))
    assert answer["kept"]["messages"] == len(kept)
    assert answer["kept"]["replaced"] == len(messages) - len(kept)


@given(conversation_strategy(turns=8, longest=3_000, system=False), st.sampled_from([None, 20_000, 200_000]))
def test_compact_stdin_keeps_the_end_of_any_conversation(messages, window):
    """Kept handles are a suffix of what came, calls and results stay together, and tokens and bytes fall."""
    transcript = build_transcript(messages)
    if window is not None:
        transcript["window"] = window
    assert_contract(transcript, compact(transcript))


@given(st.integers(20, 60), st.lists(st.sampled_from(RULES), min_size=1, unique=True), st.integers(0, 3))
def test_compact_stdin_keeps_rules_of_the_user_over_compactions(count, rules, rounds):
    """A rule of the user is in the text that is left, also if that is the extract of an extract of an extract."""
    messages = [Message.from_text("user", rule) for rule in rules]
    transcript = build_transcript([*messages, *build_work(count)])
    answer = compact(transcript)
    for _ in range(rounds):
        more = build_transcript([Message.from_text("user", "Go on with the next ones."), *build_work(count)])
        transcript = {"messages": [*answer["messages"], *more["messages"]]}
        answer = compact(transcript)
        assert_contract(transcript, answer)
    assert "why" not in answer
    left = "\n".join(message["text"] for message in answer["messages"])
    for rule in rules:
        assert rule in left
    assert left.count(EXTRACT_OPENING) == 1


@pytest.mark.parametrize(
    "script", [script for script in WORK_SCRIPTS if "claude" in script.label], ids=lambda s: s.label
)
@pytest.mark.parametrize("has_ended", [False, True])
def test_compact_stdin_names_open_work_and_only_that(script, has_ended):
    """Open agents and shells are named in the extract over two compactions; those that have ended are not."""
    work_id = script.make_id(7)
    started = script.start(work_id, "watch the build")
    ended = script.end(work_id) if has_ended else []
    question = Message.from_text("user", "Build it, and read the sources meanwhile.")
    first = compact(build_transcript([question, *started, *build_work(30), *ended, *build_work(30)]))
    transcript = {"messages": [*first["messages"], *build_transcript(build_work(40))["messages"]]}
    second = compact(transcript)
    for answer in (first, second):
        section = answer["messages"][0]["text"].partition(OPEN_WORK_HEADING)[2]
        assert (work_id in section) is not has_ended
        assert (answer["kept"]["openItems"] > 0) is not has_ended


def test_compact_stdin_leaves_little_of_a_long_session():
    """A session of 300,000 tokens shrinks to less than a tenth, and its rules are still there."""
    transcript = build_transcript(read_example_messages(), window=200_000, trigger="auto")
    answer = compact(transcript)
    assert_contract(transcript, answer)
    assert answer["tokensAfter"] < answer["tokensBefore"] / 10
    text = answer["messages"][0]["text"]
    for rule in ("never change the public names", "answer in British English", "no new dependencies", "do not commit"):
        assert rule in text


@pytest.mark.parametrize("window", [200_000, 1_000_000])
def test_compact_stdin_leaves_no_more_than_is_worth_its_price(window):
    """What the first request writes to the cache is limited, however much the window has room for."""
    answer = compact(build_transcript(read_example_messages(), window=window))
    limit = MAX_EXTRACT_TOKENS + MAX_EXTRACT_SHARE * answer["tokensBefore"]
    assert limit / 2 < answer["kept"]["extractTokens"] < 1.05 * limit
    assert answer["tokensAfter"] - answer["kept"]["extractTokens"] <= MAX_TAIL_TOKENS


def test_compact_stdin_quotes_the_instructions_and_carries_them_on():
    """What the user wrote after /compact stays, in the next compaction too."""
    instructions = "mind the ticket HF-2291"
    question = Message.from_text("user", "Read them all.")
    first = compact(build_transcript([question, *build_work(40)], instructions=instructions))
    assert f"User: {instructions}" in first["messages"][0]["text"]
    second = compact({"messages": [*first["messages"], *build_transcript(build_work(40))["messages"]]})
    assert instructions in second["messages"][0]["text"]


def test_compact_stdin_names_the_prices_of_a_known_model():
    """With them a plugin says what it costs to send a conversation whose cache is cold; a guess is no price."""
    messages = [Message.from_text("user", "Read them all."), *build_work(30)]
    answer = compact(build_transcript(messages, model="claude-opus-5-5"))
    assert answer["cacheWritePrices"] == {"fiveMinutes": 5.0, "oneHour": 8.0}
    for fields in ({}, {"model": "kelp-1"}):
        assert "cacheWritePrices" not in compact(build_transcript(messages, **fields))


@pytest.mark.parametrize("is_recorded", [False, True])
def test_compact_stdin_promises_recall_only_of_what_is_recorded(is_recorded):
    """A session that is not in the store cannot be read back, so the extract names the transcript file."""
    messages = []
    for number in range(1_000):
        words = f"Remember number {number} of box w{number * 7}, and tell nobody what is in it."
        messages += [Message.from_text("user", words), Message.from_text("assistant", "ok")]
    answer = compact(build_transcript(messages, window=20_000, isRecorded=is_recorded))
    text = answer["messages"][0]["text"]
    assert "not quoted here" in text
    assert text.count("recall") == (2 if is_recorded else 0)
    assert text.count("transcript file") == (0 if is_recorded else 2)


@given(conversation_strategy(turns=3, longest=400, system=False), st.integers(0, 5_000))
def test_compact_stdin_never_grows_by_instructions(messages, length):
    """Long instructions for a short conversation are quoted in part, or nothing is compacted."""
    transcript = build_transcript(messages, instructions="mind it " * (length // 8))
    assert_contract(transcript, compact(transcript))


def test_compact_stdin_leaves_a_result_that_fills_the_window_to_the_host():
    """Nobody has read the newest result, and it can only be kept as it is: the answer says so, with the numbers."""
    log = "\n".join(f"line {number} of a long log" for number in range(20_000))
    question = Message.from_text("user", "Read the sources, then the log.")
    messages = [question, *build_work(20), *build_exchange("Bash", {"command": "cat build.log"}, log)]
    transcript = build_transcript(messages, window=100_000)
    answer = compact(transcript)
    assert "of a window of 100,000" in answer["why"]
    assert_contract(transcript, answer)


def test_compact_stdin_keeps_unknown_fields_of_kept_messages():
    """A newer host's fields come back as they were."""
    transcript = build_transcript([Message.from_text("user", "Read them all."), *build_work(30)])
    for message in transcript["messages"]:
        message["newField"] = {"a": [1.50, None]}
    answer = compact(transcript)
    assert_contract(transcript, answer)
    assert answer["kept"]["messages"] > 0


def test_compact_stdin_accepts_half_characters():
    """JavaScript cuts texts in the middle of a character; that is valid JSON, and no reason to fail."""
    transcript = build_transcript([Message.from_text("user", "cut here: XX"), *build_work(30)])
    result = CliRunner().invoke(
        holdfast_command, ["compact", "--stdin"], json.dumps(transcript).replace("XX", "\\ud83d")
    )
    assert result.exit_code == 0
    assert "cut here: \N{REPLACEMENT CHARACTER}" in json.loads(result.stdout)["messages"][0]["text"]


def test_compact_stdin_says_why_nothing_is_compacted():
    """A short conversation stays as it came."""
    transcript = build_transcript([Message.from_text("user", "Hello"), Message.from_text("assistant", "Hello!")])
    answer = compact(transcript)
    assert answer["why"]
    assert_contract(transcript, answer)


@pytest.mark.parametrize(
    ("data", "path", "why"),
    [
        ("", "$", "0 bytes"),
        ("no JSON", "$", "7 bytes"),
        ("[]", "$", "expected `object`"),
        ("{}", "$", "`messages`"),
        ('{"messages": []}', "messages", "0 messages"),
        ('{"messages": 3}', "messages", "`array`"),
        ('{"messages": [{"text": "x"}]}', "messages[0]", "`role`"),
        ('{"messages": [{"role": "user"}, {"role": "system"}]}', "messages[1].role", "'system'"),
        ('{"messages": [{"role": "user", "text": 3}]}', "messages[0].text", "`int`"),
        (
            '{"messages": [{"role": "user", "toolUses": [{"tool_use_id": "a", "tool": "b"}]}]}',
            "messages[0].toolUses",
            "1",
        ),
        ('{"messages": [{"role": "assistant", "toolUses": [{"tool": 1}]}]}', "messages[0].toolUses[0].tool", "`int`"),
        ('{"messages": [{"role": "user"}], "window": 0}', "window", "0"),
        ('{"messages": [{"role": "user"}], "window": 1.5}', "window", "`float`"),
        ('{"messages": [{"role": "user", "text": "' + "word " * 9_000 + '"}], "window": 10}', "window", "10"),
        ('{"messages": ' + "[" * 100_000, "$", "100,013 bytes"),
    ],
)
def test_compact_stdin_names_the_place_of_wrong_input(data, path, why):
    """The error says where, with the numbers, and one thing to do; nothing is printed as an answer."""
    error = fail(data)
    assert error["path"] == path
    assert why in error["why"]
    assert error["advice"]


@given(st.binary(max_size=60) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_compact_stdin_never_crashes(data):
    """Whatever comes, it is an error with a place."""
    assert fail(data)["path"]


@pytest.mark.parametrize("arguments", [["4d56"], ["--window", "5"], ["--policy", "pi"], ["--store", "x"]])
def test_compact_stdin_takes_no_option_of_stored_sessions(arguments):
    """An option that would have no effect is refused by name."""
    result = CliRunner().invoke(holdfast_command, ["compact", "--stdin", *arguments], "{}")
    assert result.exit_code == 2
    assert arguments[0].removeprefix("--").replace("4d56", "session") in result.stderr


def test_compact_without_a_session_names_both_ways():
    """Neither a session nor a transcript was given."""
    result = CliRunner().invoke(holdfast_command, ["compact"])
    assert result.exit_code == 2
    assert "--stdin" in result.stderr


@pytest.mark.long
def test_compact_stdin_takes_under_a_second_for_three_megabytes():
    """The start of the process included, in seconds of the processor: another process may have it meanwhile."""
    transcript = build_transcript(read_example_messages() * 3)
    data = json.dumps(transcript).encode()
    assert len(data) > 3_000_000
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "holdfast", "compact", "--stdin"]
    ran = subprocess.run(command, input=data, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "why" not in json.loads(ran.stdout)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1
