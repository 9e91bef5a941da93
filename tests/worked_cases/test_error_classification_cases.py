"""Worked cases of provider errors, run through ``holdfast classify`` where the corpus is present."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import holdfast_command as program

_CASES = Path(__file__).parents[3] / "shared" / "cases"
_COMMON_FIELDS = ("provider", "channel", "status", "finish_reason", "usage", "estimate", "window")
"""Fields with the same name in the corpus and in a line of ``classify --jsonl``."""
_DEVIATIONS = {"err-04"}
"""err-04: tokens per minute, Limit 6000, Requested 9000. No waiting makes that fit, so it is a tpm_ceiling."""


def _load_cases(name):
    file = _CASES / name
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


OVERFLOW_KINDS = {
    "context_window",
    "input_plus_output",
    "request_bytes",
    "message_count",
    "oversized_part",
    "tpm_ceiling",
    "tier_gate",
    "silent_overflow",
    "silent_truncation",
}
"""Kinds for which the request is, or may be, too large: some are certain only near the window."""


def _classify_lines(lines):
    """Return the verdicts of ``holdfast classify --jsonl`` on ``lines``."""
    input_text = "".join(json.dumps(line) + "\n" for line in lines)
    result = CliRunner().invoke(program, ["classify", "-", "--jsonl"], input=input_text.encode())
    assert result.exit_code == 0, result.output
    verdicts = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(verdicts) == len(lines)
    return verdicts


def _build_line(case):
    """Return a case of the corpus as an input line of ``holdfast classify --jsonl``."""
    return {name: case.get(name) for name in _COMMON_FIELDS} | {
        "code": case["code_or_type"],
        "message": case["example_message"],
    }


def test_classify_reports_kind_and_numbers_of_every_case():
    """Kind and numbers of every case are as written, and it is an overflow exactly where the case says so."""
    cases = _load_cases("overflow-errors.json")
    wrong = []
    for case, verdict in zip(cases, _classify_lines([_build_line(case) for case in cases]), strict=True):
        stated = {name: case[name] for name in ("kind", "is_overflow", "limit", "requested") if name in case}
        if {name: verdict[name] for name in stated} != stated:
            wrong.append((case["provider"], case["example_message"], verdict))
    assert wrong == []


def test_classify_treats_a_bare_refusal_under_pressure_as_overflow():
    """A case that requires context pressure is an overflow from that share of the window, and not below."""
    for case in _load_cases("overflow-errors.json"):
        if share := case.get("requires_context_pressure"):
            line = _build_line(case) | {"window": 100_000}
            verdicts = _classify_lines([line | {"estimate": round(share * 100_000) - missing} for missing in (0, 1)])
            assert [verdict["is_overflow"] for verdict in verdicts] == [True, False]


def test_classify_keeps_rate_limits_under_any_status():
    """A rate limit stays one, whatever status a gateway gives it."""
    cases = [case for case in _load_cases("overflow-errors.json") if case["kind"] in {"rate_limit", "quota", "billing"}]
    statuses = (None, 200, 400, 413, 422, 429, 500, 503, 529)
    lines = [_build_line(case) | {"status": status} for case in cases for status in statuses]
    assert [line for line, verdict in zip(lines, _classify_lines(lines), strict=True) if verdict["is_overflow"]] == []


def _load_area(name):
    return [case for case in _load_cases("openclaw.json") if case["area"] == name]


def test_classify_agrees_with_openclaw_on_explicit_overflows():
    """Area ``error-class``: an explicit overflow there is an overflow here (``recommended`` wins over ``expect``)."""
    cases = _load_area("error-class")
    for case, verdict in zip(
        cases, _classify_lines([{"message": case["params"]["message"]} for case in cases]), strict=True
    ):
        expected = (case["expect"] | case.get("recommended", {}))["explicit_overflow"] or case["id"] in _DEVIATIONS
        assert (verdict["kind"] in OVERFLOW_KINDS) is expected, case["id"]


def test_classify_reads_requested_tokens_from_the_text():
    """Area ``observed-tokens``: the requested tokens are read from the error text."""
    cases = _load_area("observed-tokens")
    verdicts = _classify_lines([{"message": case["params"]["message"]} for case in cases])
    assert [verdict["requested"] for verdict in verdicts] == [case["expect"] for case in cases]


def test_classify_detects_silent_overflows():
    """Area ``silent-overflow-2026.9``: an answer over the window, and one cut at its first token, are overflows."""
    cases = _load_area("silent-overflow-2026.9")
    lines = []
    for case in cases:
        usage = dict(case["params"])
        line = {"channel": "answer", "finish_reason": usage.pop("stop_reason"), "window": usage.pop("window")}
        lines.append(line | {"usage": usage})
    assert [verdict["is_overflow"] for verdict in _classify_lines(lines)] == [
        case["expect"]["overflow"] for case in cases
    ]


_OPENCODE_KINDS = {
    "api_error retryable": {"rate_limit", "overloaded", "server", "network", "model"},
    "api_error not retryable": {"quota", "billing", "auth", "invalid_request", "model"},
    "context_overflow": OVERFLOW_KINDS,
}
"""The kinds that each opencode class allows; opencode retries a 404 of one provider, here its kind is model."""


def test_classify_agrees_with_opencode_classes():
    """Area ``opencode.error``: each error is of a kind that its opencode class allows."""
    cases = [case for case in _load_cases("pi-opencode.json") if case["area"] == "opencode.error"]
    lines = []
    for case in cases:
        report = case["input"]
        line = {name: report[name] for name in ("provider", "status", "message") if name in report}
        lines.append(line | {"body": report.get("stream") or report.get("body") or ""})
    for case, verdict in zip(cases, _classify_lines(lines), strict=True):
        allowed = _OPENCODE_KINDS.get(case["expect"]) if isinstance(case["expect"], str) else None
        assert allowed is None or verdict["kind"] in allowed, case["id"]
