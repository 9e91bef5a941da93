"""``holdfast classify``: verdicts as text and as JSON."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.commands.classify import _KIND_DESCRIPTIONS
from holdfast.providers.errors.report import VERDICT_KINDS

TOO_LONG = "prompt is too long: 207848 tokens > 200000 maximum"
BODY = {"type": "error", "error": {"type": "invalid_request_error", "message": TOO_LONG}}
FIELDS = ["is_overflow", "kind", "limit", "requested", "retry_after"]


def classify_lines(run, *lines: object) -> list[dict]:
    """Return the verdicts of ``classify --jsonl`` for lines given as bytes or as objects."""
    lines_text = b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    result = run("classify", "-", "--jsonl", stdin=lines_text)
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_classify_prints_the_kind_the_numbers_and_advice(run, home):
    """For a person it prints the kind, the numbers, and what to do."""
    file = home / "error.json"
    file.write_text(json.dumps(BODY))
    printed = run("classify", file).stdout
    assert "context_window (an overflow)" in printed
    assert "207,848 tokens asked for, 200,000 fit, 7,848 over" in printed
    assert "compact" in printed


def test_classify_prints_when_to_retry(run):
    """A rate limit says when to retry."""
    printed = run("classify", "-", "--status", "429", stdin="Rate limit reached. Please try again in 1m2.5s.").stdout
    assert "rate_limit (not an overflow)" in printed
    assert "in 62.5 seconds" in printed


def test_classify_json_prints_the_five_fields(run):
    """``--json`` prints the five fields, null where nothing is stated."""
    verdict = json.loads(run("classify", "-", "--json", stdin=json.dumps(BODY)).stdout)
    assert verdict == dict(zip(FIELDS, [True, "context_window", 200_000, 207_848, None], strict=True))


def test_classify_json_names_bytes_and_the_cap_of_an_answer(run):
    """A limit of bytes has its unit, and a cap of ``max_tokens`` its own field; the text shows both."""
    too_large = "total message size 9000000 exceeds limit 2097152"
    verdict = json.loads(run("classify", "-", "--json", "--status", "400", stdin=too_large).stdout)
    values = [True, "request_bytes", 2_097_152, 9_000_000, None]
    assert verdict == dict(zip(FIELDS, values, strict=True)) | {"unit": "bytes"}
    assert (
        "9,000,000 bytes sent, 2,097,152 bytes fit" in run("classify", "-", "--status", "400", stdin=too_large).stdout
    )
    capped = "max_tokens is too large: 90000. This model supports at most 64000 completion tokens."
    verdict = json.loads(run("classify", "-", "--json", "--status", "400", stdin=capped).stdout)
    values = [False, "output_limit", None, None, None]
    assert verdict == dict(zip(FIELDS, values, strict=True)) | {"output_cap": 64_000}
    assert "at most 64,000 tokens of answer" in run("classify", "-", "--status", "400", stdin=capped).stdout


def test_classify_takes_status_and_provider_as_options(run):
    """Options supply what the body does not state."""
    assert json.loads(run("classify", "-", "--json", "--status", "413", stdin="").stdout)["kind"] == "request_bytes"
    output = run("classify", "-", "--json", "--status", "400", "--provider", "cerebras", stdin="").stdout
    assert json.loads(output)["kind"] == "context_window"


def test_classify_jsonl_prints_one_verdict_a_line_in_order(run):
    """Each input line yields one output line with the same fields; one that does not decode says why."""
    all_verdicts = classify_lines(
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
    assert [verdict["kind"] for verdict in all_verdicts] == kinds
    assert [index for index, verdict in enumerate(all_verdicts) if "error" in verdict] == [1, 4, 5, 6, 7]
    assert all(list(verdict)[:5] == FIELDS for verdict in all_verdicts)


def test_classify_never_judges_an_answer_by_its_text(run):
    """A model that quotes an overflow message has not caused an overflow."""
    all_verdicts = classify_lines(
        run, {"channel": "answer", "status": 200, "finish_reason": "stop", "message": TOO_LONG}
    )
    assert all_verdicts == [dict(zip(FIELDS, [False, "content", None, None, None], strict=True))]


@pytest.mark.parametrize("odd", [None, True, [], {}, "", -1, 1e300, 10**30, "400", "\ud800", [[]]])
def test_classify_ignores_fields_of_a_wrong_type(run, odd):
    """Any value of any field yields a verdict, and the valid fields still decide."""
    case = dict.fromkeys(["provider", "status", "code", "body", "usage", "estimate", "window", "headers"], odd)
    (verdict,) = classify_lines(run, case | {"channel": "error", "message": TOO_LONG})
    assert verdict["kind"] == "context_window"
    (verdict,) = classify_lines(run, case | {"channel": "answer", "finish_reason": odd})
    assert verdict["kind"] in VERDICT_KINDS


@pytest.mark.parametrize("body", [b"", b"\x00\xff\xfe", b"[" * 100_000, b"<html>", b"null", b"{}", b'"\\ud800"'])
def test_classify_answers_any_bytes(run, body):
    """Any input yields a verdict with advice."""
    result = run("classify", "-", stdin=body)
    assert result.exit_code == 0
    assert "what to do" in result.stdout


def test_classify_accepts_a_single_case(run):
    """A file with one case, instead of an error body, is judged as that case."""
    case = {"channel": "answer", "finish_reason": "stop", "usage": {"prompt_tokens": 4096}, "estimate": 38_200}
    assert json.loads(run("classify", "-", "--json", stdin=json.dumps(case)).stdout)["kind"] == "silent_truncation"


def test_classify_describes_every_kind():
    """Every kind of verdict has its own description."""
    assert set(_KIND_DESCRIPTIONS) == set(VERDICT_KINDS)
    assert len(set(_KIND_DESCRIPTIONS.values())) == len(VERDICT_KINDS)


def test_classify_jsonl_names_the_byte_that_is_not_utf8(run, home):
    """The reason names the position of the wrong byte and what to do."""
    (home / "cases.jsonl").write_bytes(b'{"message":"hi"}\n{"message":"\xff"}\n')
    fine, odd = map(json.loads, run("classify", "cases.jsonl", "--jsonl").stdout.splitlines())
    assert ("error" in fine, odd["error"]) == (False, "the line is not UTF-8 at byte 12; encode it as UTF-8")
