"""``holdfast lint``: verdicts for people and for programs."""

from __future__ import annotations

import json

import pytest

GOOD = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BAD = GOOD | {"messages": []}


def cases(*lines: object) -> bytes:
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def test_a_valid_request(run):
    """No finding is exit code 0."""
    result = run("lint", "-", given=json.dumps(GOOD))
    assert result.exit_code == 0
    assert "valid" in result.stdout


def test_a_broken_rule_is_told_with_its_path(run, home):
    """Every finding has its rule, a JSON path and a message; the exit code is 1."""
    file = home / "bad.json"
    file.write_text(json.dumps(BAD))
    result = run("lint", file)
    assert result.exit_code == 1
    assert "$.messages" in result.stdout
    told = json.loads(run("lint", file, "--json").stdout)
    assert told["valid"] is False
    assert set(told["findings"][0]) == {"rule", "level", "path", "message"}


def test_jsonl_gives_a_verdict_for_each_line_in_order(run):
    """Of each line in comes one line out; what does not decode is a finding of rule ``json``, and others go on."""
    given = cases(
        {"api": "anthropic", "request": GOOD},
        b"{broken",
        {"api": "anthropic", "request": BAD},
        GOOD,
        b"",
        b"7",
        b"\xff",
    )
    result = run("lint", "-", "--jsonl", given=given)
    told = [json.loads(text) for text in result.stdout.splitlines()]
    assert [one["valid"] for one in told] == [True, False, False, True, False, False, False]
    assert [one["findings"][0]["rule"] for at, one in enumerate(told) if at in {1, 4, 5, 6}] == ["json"] * 4
    assert all(set(one) == {"valid", "findings"} for one in told)
    assert result.exit_code == 1


def test_jsonl_reads_files_too(run, home):
    """A file of cases without a line end at its end has as many verdicts as lines."""
    file = home / "cases.jsonl"
    file.write_bytes(cases(GOOD, GOOD).removesuffix(b"\n"))
    result = run("lint", file, "--jsonl")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("api", ["fax"])
def test_an_api_without_rules_cannot_be_judged(run, api):
    """A case for an API we do not know is never called valid; alone it is wrong use."""
    given = json.dumps({"api": api, "request": {"messages": []}})
    told = json.loads(run("lint", "-", "--jsonl", given=given).stdout)
    assert (told["valid"], told["findings"][0]["rule"]) == (False, "api")
    result = run("lint", "-", given=given)
    assert result.exit_code == 2
    assert api in result.stderr


def test_the_api_can_be_named(run):
    """``--api`` decides what the request is judged by."""
    turns = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    both = json.dumps({"model": "any", "max_tokens": 9, "messages": turns})
    assert run("lint", "-", "--api", "openai-chat", given=both).exit_code == 0
    assert run("lint", "-", "--api", "anthropic", given=both).exit_code == 1


@pytest.mark.parametrize("gone", ["model", "max_tokens"])
def test_a_whole_request_names_what_it_must(run, gone):
    """Without a model or ``max_tokens`` a request is refused; a case a line may be a part of one, which need not."""
    body = {key: value for key, value in GOOD.items() if key != gone}
    given = json.dumps(body)
    told = json.loads(run("lint", "-", "--api", "anthropic", "--json", given=given).stdout)
    assert [(one["rule"], one["path"]) for one in told["findings"]] == [("anthropic.required", f"$.{gone}")]
    line = json.loads(run("lint", "-", "--jsonl", given=cases({"api": "anthropic", "request": body})).stdout)
    assert line == {"valid": True, "findings": []}


def test_warnings_do_not_make_a_request_invalid(run):
    """``valid`` means that nothing found is an error, and so does the exit code."""
    told = [json.loads(run("lint", "-", "--json", given=json.dumps(body)).stdout) for body in (GOOD, BAD)]
    for one in told:
        assert one["valid"] is not any(finding["level"] == "error" for finding in one["findings"])


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b"\x00\x01", b'{"messages": "\\ud800"}', b"null"])
def test_what_is_no_request_is_a_finding(run, body):
    """Bytes that are no JSON object are a finding, not a traceback."""
    result = run("lint", "-", "--api", "anthropic", "--json", given=body)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["valid"] is False


def test_a_file_of_cases_hints_at_jsonl(run):
    """Who forgets ``--jsonl`` is told of it."""
    assert "--jsonl" in run("lint", "-", given=cases(GOOD, GOOD)).stdout


def test_the_model_may_stand_outside_the_body(run):
    """Gemini names the model in the address: its rules hold when it is told by option or in the case."""
    call = {"functionCall": {"name": "read", "args": {}}}
    answer = {"functionResponse": {"name": "read", "response": {"output": "x"}}}
    turns = [("user", {"text": "a"}), ("model", call), ("user", answer)]
    body = {"contents": [{"role": role, "parts": [part]} for role, part in turns]}
    assert run("lint", "-", given=json.dumps(body)).exit_code == 0
    assert run("lint", "-", "--model", "gemini-3.1-pro", given=json.dumps(body)).exit_code == 1
    case = {"api": "gemini", "model": "gemini-3.1-pro", "request": body}
    assert run("lint", "-", "--jsonl", given=cases(case)).exit_code == 1


def test_the_model_that_is_asked_for_wins(run):
    """``--model`` says whose rules hold, also where the request or its case names another model."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": turns}
    assert run("lint", "-", given=json.dumps(body)).exit_code == 0
    assert run("lint", "-", "--model", "claude-opus-4-6", given=json.dumps(body)).exit_code == 1
    case = {"api": "anthropic", "model": "claude-opus-4-6", "request": body}
    assert run("lint", "-", "--jsonl", given=cases(case)).exit_code == 1
    assert run("lint", "-", "--jsonl", "--model", "claude-sonnet-4-5", given=cases(case)).exit_code == 0


def test_betas_of_the_headers_can_be_told(run):
    """``--beta`` stands for the header of a bare body, adds to the betas of a case, and may be repeated."""
    body = {
        "model": "claude-opus-4-6",
        "max_tokens": 9,
        "compaction": {"type": "summarize"},
        "messages": [{"role": "user", "content": "a"}],
    }
    beta = "compact-2026-09-04"
    assert run("lint", "-", given=json.dumps(body)).exit_code == 1
    assert run("lint", "-", "--beta", "other", given=json.dumps(body)).exit_code == 1
    assert run("lint", "-", "--beta", "other", "--beta", beta, given=json.dumps(body)).exit_code == 0
    case = {"api": "anthropic", "betas": [beta], "request": body}
    assert run("lint", "-", "--jsonl", "--beta", "other", given=cases(case)).exit_code == 0
