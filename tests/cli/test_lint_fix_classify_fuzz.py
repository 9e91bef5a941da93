"""``lint``, ``fix`` and ``classify`` answer any bytes with a line of JSON, without a traceback or a hang."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.commands import classify, fix, lint

CASES = Path(__file__).parents[1] / "providers" / "rules" / "cases"
BODIES = [
    json.dumps({"api": path.stem, "request": case["request"]}).encode()
    for path in sorted(CASES.glob("*.json"))
    for case in json.loads(path.read_text("utf-8"))
    if isinstance(case, dict) and "request" in case
]
ODD_BYTES = (b"", b"\x00", b"\xff", b'"', b"\\", b"\\ud83d", b"[", b"}", b"1e999", b"9" * 400, b"null", b"\xe2\x80\xa8")


def damage_line(line, seed):
    """Return a line with some of its bytes removed, repeated, or replaced by odd ones."""
    rng = Random(seed)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(line) + 1)
        stop = min(len(line), start + rng.choice((0, 1, 1, 3, 40)))
        line = line[:start] + rng.choice((*ODD_BYTES, line[start:stop] * 2)) + line[stop:]
    return line.replace(b"\n", b" ")


lines = st.binary(max_size=60) | st.builds(damage_line, st.sampled_from(BODIES), st.integers(0, 10**6))


def test_fuzz_bodies_cover_the_rule_cases():
    """The fuzz starts from requests of all four APIs."""
    assert len(BODIES) > 500


@given(lines)
def test_lint_line_returns_a_verdict_for_any_bytes(make_session_line):
    """Every line gets a verdict that agrees with its findings."""
    verdict = lint.encode_findings(lint.lint_line(make_session_line))
    assert verdict["valid"] is (not [finding for finding in verdict["findings"] if finding["level"] == "error"])


@given(lines)
def test_fix_line_returns_a_request_or_an_error_for_any_bytes(make_session_line):
    """Every line gets a request or an error, and a request called valid is."""
    answer, fine = fix.fix_line(make_session_line)
    result = msgspec.json.decode(answer)
    assert "request" in result
    assert result["request"] is not None or result["error"]
    if fine:
        again = lint.lint_line(
            answer, lint.LintOptions(json.loads(make_session_line)["api"] if b'"api"' in make_session_line else None)
        )
        assert lint.has_no_errors(again)


@given(lines)
def test_classify_line_returns_a_kind_for_any_bytes(make_session_line):
    """Every line gets a kind."""
    assert classify.classify_line(make_session_line)["kind"]
