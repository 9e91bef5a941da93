"""``holdfast lint``: verdicts as text and as JSON."""

from __future__ import annotations

import json

import pytest

GOOD = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
BAD = GOOD | {"messages": []}


def encode_cases(*lines: object) -> bytes:
    """Return JSONL with the given lines, each bytes or an object."""
    return b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)


def test_lint_exits_0_for_a_valid_request(run):
    """No finding is exit code 0."""
    result = run("lint", "-", stdin=json.dumps(GOOD))
    assert result.exit_code == 0
    assert "valid" in result.stdout


def test_lint_prints_each_finding_with_its_path_and_exits_1(run, home):
    """Every finding has its rule, a JSON path and a message."""
    file = home / "bad.json"
    file.write_text(json.dumps(BAD))
    result = run("lint", file)
    assert result.exit_code == 1
    assert "$.messages" in result.stdout
    verdict = json.loads(run("lint", file, "--json").stdout)
    assert verdict["valid"] is False
    assert set(verdict["findings"][0]) == {"rule", "level", "path", "message"}


def test_lint_jsonl_prints_one_verdict_a_line_in_order(run):
    """Each input line yields one output line; one that does not decode is a finding of rule ``json``."""
    lines = encode_cases(
        {"api": "anthropic", "request": GOOD},
        b"{broken",
        {"api": "anthropic", "request": BAD},
        GOOD,
        b"",
        b"7",
        b"\xff",
    )
    result = run("lint", "-", "--jsonl", stdin=lines)
    verdicts = [json.loads(text) for text in result.stdout.splitlines()]
    assert [verdict["valid"] for verdict in verdicts] == [True, False, False, True, False, False, False]
    assert [verdict["findings"][0]["rule"] for at, verdict in enumerate(verdicts) if at in {1, 4, 5, 6}] == ["json"] * 4
    assert all(set(verdict) == {"valid", "findings"} for verdict in verdicts)
    assert result.exit_code == 1


def test_lint_jsonl_accepts_a_file_without_a_final_newline(run, home):
    """A file without a final newline has as many verdicts as lines."""
    file = home / "cases.jsonl"
    file.write_bytes(encode_cases(GOOD, GOOD).removesuffix(b"\n"))
    result = run("lint", file, "--jsonl")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.parametrize("api", ["fax"])
def test_lint_never_calls_a_request_of_an_unknown_api_valid(run, api):
    """A JSONL case for an unknown API is invalid; a single one is wrong use."""
    body_text = json.dumps({"api": api, "request": {"messages": []}})
    verdict = json.loads(run("lint", "-", "--jsonl", stdin=body_text).stdout)
    assert (verdict["valid"], verdict["findings"][0]["rule"]) == (False, "api")
    result = run("lint", "-", stdin=body_text)
    assert result.exit_code == 2
    assert api in result.stderr


def test_lint_api_selects_the_rules(run):
    """``--api`` decides by which rules the request is judged."""
    turns = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    both = json.dumps({"model": "any", "max_tokens": 9, "messages": turns})
    assert run("lint", "-", "--api", "openai-chat", stdin=both).exit_code == 0
    assert run("lint", "-", "--api", "anthropic", stdin=both).exit_code == 1


@pytest.mark.parametrize("missing", ["model", "max_tokens"])
def test_lint_requires_model_and_max_tokens_of_a_whole_request(run, missing):
    """A whole request without a model or ``max_tokens`` is refused; a JSONL case may be partial."""
    body = {key: value for key, value in GOOD.items() if key != missing}
    body_text = json.dumps(body)
    verdict = json.loads(run("lint", "-", "--api", "anthropic", "--json", stdin=body_text).stdout)
    assert [(finding["rule"], finding["path"]) for finding in verdict["findings"]] == [
        ("anthropic.required", f"$.{missing}")
    ]
    line = json.loads(run("lint", "-", "--jsonl", stdin=encode_cases({"api": "anthropic", "request": body})).stdout)
    assert line == {"valid": True, "findings": []}


def test_lint_valid_means_no_finding_is_an_error(run):
    """Warnings alone leave a request valid."""
    verdicts = [json.loads(run("lint", "-", "--json", stdin=json.dumps(body)).stdout) for body in (GOOD, BAD)]
    for verdict in verdicts:
        assert verdict["valid"] is not any(finding["level"] == "error" for finding in verdict["findings"])


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b"\x00\x01", b'{"messages": "\\ud800"}', b"null"])
def test_lint_reports_bytes_that_are_no_request_as_a_finding(run, body):
    """Bytes that are not a JSON object are a finding, not a traceback."""
    result = run("lint", "-", "--api", "anthropic", "--json", stdin=body)
    assert result.exit_code == 1
    assert json.loads(result.stdout)["valid"] is False


def test_lint_suggests_jsonl_for_a_file_of_cases(run):
    """A file of cases without ``--jsonl`` gets a hint."""
    assert "--jsonl" in run("lint", "-", stdin=encode_cases(GOOD, GOOD)).stdout


def test_lint_takes_the_model_from_the_option_or_the_case(run):
    """Gemini names the model in the address, so its rules apply when the option or the case names it."""
    call = {"functionCall": {"name": "read", "args": {}}}
    answer = {"functionResponse": {"name": "read", "response": {"output": "x"}}}
    turns = [("user", {"text": "a"}), ("model", call), ("user", answer)]
    body = {"contents": [{"role": role, "parts": [part]} for role, part in turns]}
    assert run("lint", "-", stdin=json.dumps(body)).exit_code == 0
    assert run("lint", "-", "--model", "gemini-3.1-pro", stdin=json.dumps(body)).exit_code == 1
    case = {"api": "gemini", "model": "gemini-3.1-pro", "request": body}
    assert run("lint", "-", "--jsonl", stdin=encode_cases(case)).exit_code == 1


def test_lint_model_overrides_the_models_of_request_and_case(run):
    """``--model`` decides whose rules apply, whatever the request or its case names."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": turns}
    assert run("lint", "-", stdin=json.dumps(body)).exit_code == 0
    assert run("lint", "-", "--model", "claude-opus-4-6", stdin=json.dumps(body)).exit_code == 1
    case = {"api": "anthropic", "model": "claude-opus-4-6", "request": body}
    assert run("lint", "-", "--jsonl", stdin=encode_cases(case)).exit_code == 1
    assert run("lint", "-", "--jsonl", "--model", "claude-sonnet-4-5", stdin=encode_cases(case)).exit_code == 0


def test_lint_beta_adds_beta_headers(run):
    """``--beta`` stands for the header of a bare body, adds to the betas of a case, and may be repeated."""
    body = {
        "model": "claude-opus-4-6",
        "max_tokens": 9,
        "compaction": {"type": "summarize"},
        "messages": [{"role": "user", "content": "a"}],
    }
    beta = "compact-2026-09-04"
    assert run("lint", "-", stdin=json.dumps(body)).exit_code == 1
    assert run("lint", "-", "--beta", "other", stdin=json.dumps(body)).exit_code == 1
    assert run("lint", "-", "--beta", "other", "--beta", beta, stdin=json.dumps(body)).exit_code == 0
    case = {"api": "anthropic", "betas": [beta], "request": body}
    assert run("lint", "-", "--jsonl", "--beta", "other", stdin=encode_cases(case)).exit_code == 0


GLM = {"model": "glm-4.6", "temperature": 1.5, "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("", ["glm.field-range"]),
        ('[[model]]\nmatch = "glm-*"\nprovider = "vllm"\n', []),
        ('[[model]]\nmatch = "glm-*"\nprovider = "openai"\n', []),
        ('[[model]]\nmatch = "house-*"\nprovider = "vllm"\n', ["glm.field-range"]),
    ],
)
def test_lint_goes_by_the_provider_in_holdfast_toml(settings, expected, run, home):
    """A line for the model names the provider whose rules hold; ``--provider`` wins over it."""
    (home / "holdfast.toml").write_text(settings)
    result = run("lint", "-", "--json", stdin=json.dumps(GLM))
    assert [finding["rule"] for finding in json.loads(result.stdout)["findings"]] == expected
    result = run("lint", "-", "--jsonl", stdin=json.dumps({"request": GLM}))
    assert [finding["rule"] for finding in json.loads(result.stdout)["findings"]] == expected
    result = run("lint", "-", "--json", "--provider", "glm", stdin=json.dumps(GLM))
    assert [finding["rule"] for finding in json.loads(result.stdout)["findings"]] == ["glm.field-range"]


def test_lint_refuses_an_unknown_provider_in_holdfast_toml(run, home):
    """A misspelt provider is an error with the file, the place and the nearest name."""
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "glm-*"\nprovider = "gml"\n')
    result = run("lint", "-", stdin=json.dumps(GLM))
    assert result.exit_code == 2
    assert "holdfast.toml" in result.stderr
    assert "$.model[0].provider" in result.stderr
    assert "did you mean glm?" in result.stderr


GEMINI = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}


def test_lint_warns_of_a_provider_without_rules_for_the_api(run):
    """The warning is on standard error and in the record, and the exit code is that of the API's own rules."""
    result = run("lint", "-", "--provider", "groq", stdin=json.dumps(GEMINI))
    assert result.exit_code == 0
    assert "groq has no rules for gemini; known: openai-chat" in result.stderr
    assert "valid, no rule broken" in result.stdout
    record = json.loads(run("lint", "-", "--json", "--provider", "groq", stdin=json.dumps(GEMINI)).stdout)
    assert record["valid"] is True
    assert [(finding["rule"], finding["level"]) for finding in record["findings"]] == [("provider", "warning")]
    lines = encode_cases({"request": GEMINI}, {"request": GEMINI})
    assert run("lint", "-", "--jsonl", "--provider", "groq", stdin=lines).stderr.count("has no rules") == 1
    assert run("lint", "-", "--provider", "groq", stdin=json.dumps({**GEMINI, "contents": 1})).exit_code == 1
    assert run("lint", "-", "--provider", "vertex", stdin=json.dumps(GEMINI)).stderr == ""


def test_lint_reports_an_unknown_provider_of_one_line_as_a_finding(run):
    """One bad line among many does not end the command."""
    lines = encode_cases({"request": GOOD, "provider": "groqq"}, {"request": GOOD})
    first, second = run("lint", "-", "--jsonl", stdin=lines).stdout.splitlines()
    assert "did you mean groq?" in json.loads(first)["findings"][0]["message"]
    assert json.loads(second)["valid"] is True


def test_lint_and_fix_say_if_only_the_models_name_told_the_api(run):
    """A valid request to a gateway may look like a mistake on the Messages API; the option that ends it is named."""
    messages = [{"role": "system", "content": "s"}, *GOOD["messages"]]
    body = json.dumps({**GOOD, "messages": messages})
    advice = "taken for anthropic because of its model's name; if it is not, give --api openai-chat"
    assert advice in run("lint", "-", stdin=body).stderr
    assert advice in run("fix", "-", stdin=body).stderr
    assert run("lint", "-", "--api", "openai-chat", stdin=body).exit_code == 0
    assert run("lint", "-", "--provider", "openrouter", stdin=body).exit_code == 0
    assert "taken for" not in run("lint", "-", stdin=json.dumps(BAD)).stderr
    assert "taken for" not in run("fix", "-", "--provider", "anthropic", stdin=body).stderr
