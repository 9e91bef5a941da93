"""The worked cases of errors beside this checkout, where they are there."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.cli.classify import of_line, report
from holdfast.wire.overflow import OVERFLOWS, AnswerReport, ErrorReport, classify

_CASES = Path(__file__).parents[3] / "shared" / "cases"
_SAME = ("provider", "channel", "status", "finish_reason", "usage", "estimate", "window")
"""Fields that have one name in the corpus and in a line of ``classify --jsonl``."""
_DEVIATIONS = {"err-04"}
"""err-04: tokens a minute, Limit 6000, Requested 9000. No waiting makes that fit: the numbers decide (tpm_ceiling)."""


def _read(name):
    file = _CASES / name
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def _line(case):
    """Return a case of the corpus as a line of ``holdfast classify --jsonl``."""
    return {name: case.get(name) for name in _SAME} | {"code": case["code_or_type"], "message": case["example_message"]}


def test_every_error_of_the_corpus():
    """Kind and numbers of every case are right, and it is an overflow exactly where the case says so."""
    wrong = []
    for case in _read("overflow-errors.json"):
        told = of_line(json.dumps(_line(case)).encode())
        stated = {name: case[name] for name in ("kind", "is_overflow", "limit", "requested") if name in case}
        if {name: told[name] for name in stated} != stated:
            wrong.append((case["provider"], case["example_message"], told))
    assert wrong == []


def test_pressure_makes_a_bare_refusal_an_overflow():
    """A case that asks for context pressure is an overflow from that share of the window on, and not below."""
    for case in _read("overflow-errors.json"):
        if share := case.get("requires_context_pressure"):
            line = _line(case) | {"window": 100_000}
            verdicts = [classify(report(line | {"estimate": round(share * 100_000) - less})) for less in (0, 1)]
            assert [one.is_overflow for one in verdicts] == [True, False]


def test_no_rate_limit_of_the_corpus_is_an_overflow_under_any_status():
    """However a gateway changes the status of a rate limit, it stays one."""
    for case in _read("overflow-errors.json"):
        if case["kind"] in {"rate_limit", "quota", "billing"}:
            for status in (None, 200, 400, 413, 422, 429, 500, 503, 529):
                assert not classify(report(_line(case) | {"status": status})).is_overflow, (status, case)


def _area(name):
    return [case for case in _read("openclaw.json") if case["area"] == name]


def test_openclaw_error_class():
    """Area ``error-class``: an explicit overflow there is an overflow here (``recommended`` wins over ``expect``)."""
    for case in _area("error-class"):
        wanted = (case["expect"] | case.get("recommended", {}))["explicit_overflow"] or case["id"] in _DEVIATIONS
        found = classify(ErrorReport(message=case["params"]["message"]))
        assert (found.kind in OVERFLOWS) is wanted, case["id"]


def test_openclaw_observed_tokens():
    """Area ``observed-tokens``: what was asked for is read out of the text."""
    for case in _area("observed-tokens"):
        assert classify(ErrorReport(message=case["params"]["message"])).requested == case["expect"], case["id"]


def test_openclaw_silent_overflow():
    """Area ``silent-overflow-2026.9``: an answer over the window, and one cut at its first token."""
    for case in _area("silent-overflow-2026.9"):
        asked = dict(case["params"])
        found = classify(AnswerReport("", asked.pop("stop_reason"), asked, window=asked.pop("window")))
        assert found.is_overflow is case["expect"]["overflow"], case["id"]


_OPENCODE = {
    "api_error retryable": {"rate_limit", "overloaded", "server", "network", "model"},
    "api_error not retryable": {"quota", "billing", "auth", "invalid_request", "model"},
    "context_overflow": OVERFLOWS,
}
"""What its classes are among our kinds; a 404 is tried again there for one provider, here it is the model's."""


def test_opencode_errors():
    """Area ``opencode.error``: each error is of a kind that its class allows."""
    for case in (case for case in _read("pi-opencode.json") if case["area"] == "opencode.error"):
        given = case["input"]
        body = given.get("stream") or given.get("body") or b""
        found = classify(
            ErrorReport(given.get("provider", ""), given.get("status"), "", given.get("message", ""), body)
        )
        allowed = _OPENCODE.get(case["expect"]) if isinstance(case["expect"], str) else None
        assert allowed is None or found.kind in allowed, case["id"]
