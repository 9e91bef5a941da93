"""``holdfast classify``: verdicts for people and for programs."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.commands.classify import _KIND_DESCRIPTIONS
from holdfast.providers.errors.report import VERDICT_KINDS

TOO_LONG = "prompt is too long: 207848 tokens > 200000 maximum"
BODY = {"type": "error", "error": {"type": "invalid_request_error", "message": TOO_LONG}}
FIELDS = ["is_overflow", "kind", "limit", "requested", "retry_after"]


def verdicts(run, *lines: object) -> list[dict]:
    given = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    result = run("classify", "-", "--jsonl", given=given)
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_an_error_body_is_told_with_numbers_and_a_cure(run, home):
    """For a person: what it is, the numbers, and what to do."""
    file = home / "error.json"
    file.write_text(json.dumps(BODY))
    said = run("classify", file).stdout
    assert "context_window (an overflow)" in said
    assert "207,848 tokens asked for, 200,000 fit, 7,848 over" in said
    assert "compact" in said


def test_a_wait_is_told(run):
    """A rate limit says when to retry    ."""
    said = run("classify", "-", "--status", "429", given="Rate limit reached. Please try again in 1m2.5s.").stdout
    assert "rate_limit (not an overflow)" in said
    assert "in 62.5 seconds" in said


def test_json_is_the_verdict(run):
    """``--json`` prints the five fields, null where nothing is stated."""
    told = json.loads(run("classify", "-", "--json", given=json.dumps(BODY)).stdout)
    assert told == dict(zip(FIELDS, [True, "context_window", 200_000, 207_848, None], strict=True))


def test_status_and_provider_can_be_named(run):
    """What the body does not say, options do."""
    assert json.loads(run("classify", "-", "--json", "--status", "413", given="").stdout)["kind"] == "request_bytes"
    told = run("classify", "-", "--json", "--status", "400", "--provider", "cerebras", given="").stdout
    assert json.loads(told)["kind"] == "context_window"


def test_jsonl_gives_a_verdict_for_each_line_in_order(run):
    """Of each line in comes one line out, with the same fields; what does not decode is unknown and says why."""
    told = verdicts(
        run,
        {"provider": "anthropic", "channel": "error", "status": 400, "message": TOO_LONG},
        b"{broken",
        {"provider": "anthropic", "channel": "stream_error", "status": 200, "body": BODY},
        {"channel": "answer", "finish_reason": "length", "usage": {"input_tokens": 199_000}, "window": 200_000},
        b"",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        {"status": 529},
    )
    kinds = ["context_window", "unknown", "context_window", "silent_overflow", *["unknown"] * 4, "overloaded"]
    assert [one["kind"] for one in told] == kinds
    assert [index for index, one in enumerate(told) if "error" in one] == [1, 4, 5, 6, 7]
    assert all(list(one)[:5] == FIELDS for one in told)


def test_an_answer_is_never_judged_by_its_text(run):
    """A model that quotes an overflow has not caused one."""
    told = verdicts(run, {"channel": "answer", "status": 200, "finish_reason": "stop", "message": TOO_LONG})
    assert told == [dict(zip(FIELDS, [False, "content", None, None, None], strict=True))]


@pytest.mark.parametrize("odd", [None, True, [], {}, "", -1, 1e300, 10**30, "400", "\ud800", [[]]])
def test_fields_of_a_wrong_type_count_as_not_given(run, odd):
    """No value of any field ends in anything but a verdict; what else is known still decides."""
    case = dict.fromkeys(["provider", "status", "code", "body", "usage", "estimate", "window", "headers"], odd)
    (told,) = verdicts(run, case | {"channel": "error", "message": TOO_LONG})
    assert told["kind"] == "context_window"
    (told,) = verdicts(run, case | {"channel": "answer", "finish_reason": odd})
    assert told["kind"] in VERDICT_KINDS


@pytest.mark.parametrize("given", [b"", b"\x00\xff\xfe", b"[" * 100_000, b"<html>", b"null", b"{}", b'"\\ud800"'])
def test_any_bytes_are_answered(run, given):
    """A file of anything is told to be something."""
    result = run("classify", "-", given=given)
    assert result.exit_code == 0
    assert "what to do" in result.stdout


def test_a_case_can_stand_alone(run):
    """A file with one case, not an error body, is judged as that case."""
    case = {"channel": "answer", "finish_reason": "stop", "usage": {"prompt_tokens": 4096}, "estimate": 38_200}
    assert json.loads(run("classify", "-", "--json", given=json.dumps(case)).stdout)["kind"] == "silent_truncation"


def test_every_kind_has_a_meaning():
    """Whatever is found can be told, in words of its own."""
    assert set(_KIND_DESCRIPTIONS) == set(VERDICT_KINDS)
    assert len(set(_KIND_DESCRIPTIONS.values())) == len(VERDICT_KINDS)


def test_a_line_of_other_bytes_is_told_where(run, home):
    """The reason is in words of this program, with the place."""
    (home / "cases.jsonl").write_bytes(b'{"message":"hi"}\n{"message":"\xff"}\n')
    fine, odd = map(json.loads, run("classify", "cases.jsonl", "--jsonl").stdout.splitlines())
    assert ("error" in fine, odd["error"]) == (False, "the line is not UTF-8 at byte 12; encode it as UTF-8")
