"""What ``bench/host_compaction.py`` measures, on a constructed session of Claude Code with one compaction."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from sample_conversations import make_text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import host_compaction as bench
from host_policies import LCC_PACKAGE, OURS, find_version, list_policies
from host_rules import measure_rules

SUMMARY = (
    "This session is being continued from a previous conversation that ran out of context. The tests of cart.py fail."
)
BEFORE, AFTER = 30, 14
"""Answers with a call before the compaction and after it."""


def write_session(folder: Path, *, has_command: bool = False) -> Path:
    """Write a session in which the agent reads files, is compacted after 70 s, and reads on."""
    lines: list[dict] = []
    seconds = 0

    def add(kind: str, **fields: object) -> None:
        parent = lines[-1]["uuid"] if lines else None
        stamp = f"2026-02-01T10:{seconds // 60:02}:{seconds % 60:02}.000Z"
        line = {"type": kind, "uuid": f"u{len(lines)}", "parentUuid": parent, "timestamp": stamp, "sessionId": "s1"}
        lines.append(line | {"cwd": "/srv/shop"} | fields)

    def add_answer(number: int) -> None:
        call = {
            "type": "tool_use",
            "id": f"c{number}",
            "name": "Read",
            "input": {"file_path": f"shop/part_{number}.py"},
        }
        result = {"type": "tool_result", "tool_use_id": f"c{number}", "content": make_text(number, 6_000)}
        shown = number if number < BEFORE else 2 + number - BEFORE
        usage = {"input_tokens": 20_000 + 2_000 * shown, "output_tokens": 30}
        message = {
            "role": "assistant",
            "id": f"m{number}",
            "model": "claude-opus-4-6",
            "content": [call],
            "usage": usage,
        }
        add("assistant", message=message)
        add("user", message={"role": "user", "content": [result]})

    add("user", message={"role": "user", "content": "Read the shop. Never touch shop/holy.py."})
    for number in range(BEFORE):
        seconds += 2
        add_answer(number)
    command_at = seconds
    seconds += 70
    add("system", subtype="compact_boundary", content="Conversation compacted", compactMetadata={"trigger": "auto"})
    add("user", isCompactSummary=True, message={"role": "user", "content": SUMMARY})
    if has_command:
        seconds, ended_at = command_at + 30, seconds
        text = "<command-name>/compact</command-name>"
        add("user", message={"role": "user", "content": text})
        seconds = ended_at
    for number in range(BEFORE, BEFORE + AFTER):
        seconds += 2
        add_answer(number)
    file = folder / "shop-1.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return file


def measure(folder: Path, sizes: list[int]) -> dict[tuple[str, str], bench.Figures]:
    sessions = bench.list_sessions([folder])
    rows = bench.measure_moments(sessions, list_policies(), sizes, 1)
    return {(row.label, row.policy): row for row in rows}


def test_built_in_is_what_the_file_has(tmp_path):
    """The recorded compaction counts with its summary alone, its recorded seconds, and the price of its call."""
    write_session(tmp_path)
    row = measure(tmp_path, [])[bench.RECORDED, bench.BUILT_IN]
    session = bench.list_sessions([tmp_path])[0]
    assert row.tokens_after == session.study.count_message(session.built_ins[0].summary)
    assert row.seconds == 70
    assert row.price.call > 0
    assert row.facts is not None


@pytest.mark.parametrize("has_command", [False, True])
def test_blocked_seconds_begin_with_the_command_or_the_last_message(tmp_path, has_command):
    """Of a compaction that the user asked for the wait begins when he asked, not with the message before."""
    file = write_session(tmp_path, has_command=has_command)
    assert list(bench.find_blocked_seconds(file.read_bytes()).values()) == [40.0 if has_command else 70.0]


def test_blocked_seconds_are_unknown_after_a_finished_answer(tmp_path):
    """After an answer without calls the user may have been away, so nothing is measured."""
    lines = [json.loads(line) for line in write_session(tmp_path).read_text("utf-8").splitlines()]
    boundary = next(number for number, line in enumerate(lines) if line.get("subtype"))
    lines[boundary - 1] = lines[boundary - 2] | {"message": {"role": "assistant", "content": [{"type": "text"}]}}
    data = "\n".join(map(json.dumps, lines)).encode()
    assert bench.find_blocked_seconds(data) == {}


def test_every_policy_is_measured_at_the_same_moments(tmp_path):
    """All policies get the same context at a moment, and none leaves more than it got."""
    write_session(tmp_path)
    rows = measure(tmp_path, [40_000])
    for label in (bench.RECORDED, "40,000"):
        own = [row for (row_label, _), row in rows.items() if row_label == label]
        assert {row.policy for row in own} >= {OURS, bench.BUILT_IN, bench.BUILT_IN_BY_USAGE}
        assert len({row.tokens_before for row in own}) == 1
        assert all(row.tokens_after <= row.tokens_before for row in own)


def test_a_summary_is_not_scored_where_it_was_not_recorded(tmp_path):
    """At a size the built-in compaction stands for size and cost; a joined session is scored for nobody."""
    write_session(tmp_path)
    rows = measure(tmp_path, [40_000, 90_000])
    assert rows["40,000", bench.BUILT_IN].facts is None
    assert rows["40,000", bench.BUILT_IN].seconds is None
    assert rows["40,000", OURS].facts is not None
    assert rows["90,000", OURS].is_constructed
    assert rows["90,000", OURS].facts is None


def test_price_grows_with_what_a_compaction_leaves(tmp_path):
    """The first request writes what is left and reads the setup; ten requests read what is left again and again."""
    write_session(tmp_path)
    session = bench.list_sessions([tmp_path])[0]
    moment = bench.list_recorded_moments(session)[0]
    context = list(session.study.session.messages[: moment.position])
    count = session.study.count_message
    small = bench.price_requests(moment, context, context[-2:])
    large = bench.price_requests(moment, context, context[-12:])
    assert small.first_write == sum(map(count, context[-2:]))
    assert large.first_write == sum(map(count, context[-12:]))
    assert large.ten > small.ten
    assert small.call == large.call == 0


def test_goals_compare_with_the_built_in_compaction(tmp_path):
    """A goal is missed if ours leaves more or costs more."""
    write_session(tmp_path)
    pools = bench.pool_figures(list(measure(tmp_path, [40_000]).values()))
    goals = bench.list_goals(pools)
    assert [goal.is_reached for goal in goals] == [goal.ours <= goal.most for goal in goals]
    assert {goal.text for goal in goals} == {
        "ten requests and the call at 40,000, built-in",
        "ten requests and the call at 40,000, built-in, by its usage",
    }


def test_rules_of_the_user_survive_twenty_compactions():
    """Every rule in force is in the text that twenty compactions leave, each made of the text before."""
    for row in measure_rules(list_policies()[:1], 1):
        assert row.in_force[20] > 10
        assert row.kept == row.in_force


@pytest.mark.skipif(not find_version(LCC_PACKAGE), reason="the rivals are not installed: uv sync --group rivals")
def test_rivals_keep_what_they_promise(tmp_path):
    """lcc keeps every message; cliff keeps its newest three answers and its summary names the user's words."""
    write_session(tmp_path)
    session = bench.list_sessions([tmp_path])[0]
    context = session.study.session.messages[:41]
    for policy in list_policies()[1:]:
        after = policy.compact(context).messages
        assert after[-6:] == context[-6:], policy.name
        if policy.name.startswith("lcc"):
            assert [message.message.text for message in after] == [message.message.text for message in context]
        else:
            assert len(after) < 10
