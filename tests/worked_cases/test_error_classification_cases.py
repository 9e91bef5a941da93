"""The worked cases of errors beside this checkout, where they are there: what ``holdfast classify`` says of them."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from holdfast.cli import command as program

_CASES = Path(__file__).parents[3] / "shared" / "cases"
_SAME = ("provider", "channel", "status", "finish_reason", "usage", "estimate", "window")
"""Fields that have one name in the corpus and in a line of ``classify --jsonl``."""
_DEVIATIONS = {"err-04"}
"""err-04: tokens a minute, Limit 6000, Requested 9000. No waiting makes that fit: the numbers decide (tpm_ceiling)."""


def _read(name):
    file = _CASES / name
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


OVERFLOWS = {
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
"""Kinds of which the request is too large, or may be: some need to be near the window to be sure."""


def _classified(lines):
    """Return what ``holdfast classify --jsonl`` says of each line."""
    given = "".join(json.dumps(line) + "\n" for line in lines)
    ran = CliRunner().invoke(program, ["classify", "-", "--jsonl"], input=given.encode())
    assert ran.exit_code == 0, ran.output
    verdicts = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(verdicts) == len(lines)
    return verdicts


def _line(case):
    """Return a case of the corpus as a line of ``holdfast classify --jsonl``."""
    return {name: case.get(name) for name in _SAME} | {"code": case["code_or_type"], "message": case["example_message"]}


def test_every_error_of_the_corpus():
    """Kind and numbers of every case are right, and it is an overflow exactly where the case says so."""
    cases = _read("overflow-errors.json")
    wrong = []
    for case, told in zip(cases, _classified([_line(case) for case in cases]), strict=True):
        stated = {name: case[name] for name in ("kind", "is_overflow", "limit", "requested") if name in case}
        if {name: told[name] for name in stated} != stated:
            wrong.append((case["provider"], case["example_message"], told))
    assert wrong == []


def test_pressure_makes_a_bare_refusal_an_overflow():
    """A case that asks for context pressure is an overflow from that share of the window on, and not below."""
    for case in _read("overflow-errors.json"):
        if share := case.get("requires_context_pressure"):
            line = _line(case) | {"window": 100_000}
            verdicts = _classified([line | {"estimate": round(share * 100_000) - less} for less in (0, 1)])
            assert [one["is_overflow"] for one in verdicts] == [True, False]


def test_no_rate_limit_of_the_corpus_is_an_overflow_under_any_status():
    """However a gateway changes the status of a rate limit, it stays one."""
    cases = [case for case in _read("overflow-errors.json") if case["kind"] in {"rate_limit", "quota", "billing"}]
    statuses = (None, 200, 400, 413, 422, 429, 500, 503, 529)
    lines = [_line(case) | {"status": status} for case in cases for status in statuses]
    assert [line for line, told in zip(lines, _classified(lines), strict=True) if told["is_overflow"]] == []


def _area(name):
    return [case for case in _read("openclaw.json") if case["area"] == name]


def test_openclaw_error_class():
    """Area ``error-class``: an explicit overflow there is an overflow here (``recommended`` wins over ``expect``)."""
    cases = _area("error-class")
    for case, told in zip(cases, _classified([{"message": case["params"]["message"]} for case in cases]), strict=True):
        wanted = (case["expect"] | case.get("recommended", {}))["explicit_overflow"] or case["id"] in _DEVIATIONS
        assert (told["kind"] in OVERFLOWS) is wanted, case["id"]


def test_openclaw_observed_tokens():
    """Area ``observed-tokens``: what was asked for is read out of the text."""
    cases = _area("observed-tokens")
    verdicts = _classified([{"message": case["params"]["message"]} for case in cases])
    assert [told["requested"] for told in verdicts] == [case["expect"] for case in cases]


def test_openclaw_silent_overflow():
    """Area ``silent-overflow-2026.9``: an answer over the window, and one cut at its first token."""
    cases = _area("silent-overflow-2026.9")
    lines = []
    for case in cases:
        usage = dict(case["params"])
        line = {"channel": "answer", "finish_reason": usage.pop("stop_reason"), "window": usage.pop("window")}
        lines.append(line | {"usage": usage})
    assert [told["is_overflow"] for told in _classified(lines)] == [case["expect"]["overflow"] for case in cases]


_OPENCODE = {
    "api_error retryable": {"rate_limit", "overloaded", "server", "network", "model"},
    "api_error not retryable": {"quota", "billing", "auth", "invalid_request", "model"},
    "context_overflow": OVERFLOWS,
}
"""What its classes are among our kinds; a 404 is tried again there for one provider, here it is the model's."""


def test_opencode_errors():
    """Area ``opencode.error``: each error is of a kind that its class allows."""
    cases = [case for case in _read("pi-opencode.json") if case["area"] == "opencode.error"]
    lines = []
    for case in cases:
        given = case["input"]
        line = {name: given[name] for name in ("provider", "status", "message") if name in given}
        lines.append(line | {"body": given.get("stream") or given.get("body") or ""})
    for case, told in zip(cases, _classified(lines), strict=True):
        allowed = _OPENCODE.get(case["expect"]) if isinstance(case["expect"], str) else None
        assert allowed is None or told["kind"] in allowed, case["id"]
