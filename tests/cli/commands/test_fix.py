"""``holdfast fix``: the request on standard output, the changes on standard error, and an answer to any input."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.cli.commands.fix import FixOptions, fix_request_body
from holdfast.providers.dialects.registry import PROVIDER_NAMES

BROKEN = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 9,
    "messages": [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
        {"role": "user", "content": "are you there?"},
    ],
}
VALID = b'{ "model": "claude-sonnet-4-5",\n "max_tokens": 9, "messages": [{"role":"user", "content": "\\u4f60"}]}'


def test_fix_keeps_the_bytes_of_a_valid_request(run, tmp_path):
    """A request that needs no fix is printed byte for byte, and the command says so."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    result = run("fix", str(file))
    assert result.exit_code == 0
    assert result.stdout_bytes == VALID
    assert "nothing changed" in result.stderr


def test_fix_to_reports_a_lossless_conversion(run, tmp_path):
    """A valid request converted without loss is reported as converted."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    result = run("fix", str(file), "--to", "openai-chat")
    assert result.stderr == "valid now: converted to openai-chat; nothing was left out\n"
    assert json.loads(result.stdout)["messages"]


def test_fix_model_reports_only_the_changed_model(run, tmp_path):
    """If only the model's name changes, that is the only change reported."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    result = run("fix", str(file), "--model", "claude-sonnet-4-5-20250929")
    assert json.loads(result.stdout) == json.loads(VALID) | {"model": "claude-sonnet-4-5-20250929"}
    assert "$.model" in result.stderr
    assert "converted" not in result.stderr
    assert "valid now: 1 change" in result.stderr


def test_fix_prints_the_fixed_request_and_explains_each_change(run, tmp_path):
    """Standard output has only the request; standard error has each change with rule, path and reason."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(BROKEN))
    result = run("fix", str(file))
    assert result.exit_code == 0
    fixed = json.loads(result.stdout)
    assert [message["role"] for message in fixed["messages"]] == ["user", "assistant", "user", "user"]
    assert fixed["messages"][2]["content"][0]["tool_use_id"] == "t1"
    for word in ("pairing", "$.messages[2]", "added for calls", "valid now: 1 change"):
        assert word in result.stderr
    file.write_text(result.stdout)
    assert run("fix", str(file)).stdout_bytes == result.stdout_bytes


def test_fix_output_writes_the_request_to_a_file(run, tmp_path):
    """``--output`` writes the request there and nothing to standard output."""
    file, out = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text(json.dumps(BROKEN))
    result = run("fix", str(file), "-o", str(out))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert json.loads(out.read_text())["model"] == "claude-sonnet-4-5"


@pytest.mark.parametrize("options", [(), ("--jsonl",), ("--json",)])
def test_fix_output_replaces_an_existing_file_only_with_force(run, tmp_path, options):
    """Without --force an existing file is kept, the input too, in every output mode."""
    file, out = tmp_path / "a.json", tmp_path / "notes.txt"
    file.write_text(json.dumps(BROKEN))
    out.write_text("mine")
    for path, content in ((out, "mine"), (file, json.dumps(BROKEN))):
        refused = run("fix", str(file), "-o", str(path), *options)
        assert (refused.exit_code, path.read_text()) == (2, content)
        assert "already exists; give another name, or --force to replace it" in refused.stderr
    result = run("fix", str(file), "-o", str(out), "--force", *options)
    assert result.exit_code == 0
    assert json.loads(out.read_text()).keys() & {"model", "request"}
    assert bool(result.stdout) is ("--json" in options)


def test_fix_exits_1_for_what_it_cannot_fix(run, tmp_path):
    """A fault without one right fix stays, is reported, and makes the exit code 1."""
    file = tmp_path / "a.json"
    file.write_text(
        json.dumps({"model": "claude-sonnet-4-5", "max_tokens": "many", "messages": BROKEN["messages"][:1]})
    )
    result = run("fix", str(file))
    assert result.exit_code == 1
    assert json.loads(result.stdout)["max_tokens"] == "many"
    assert "anthropic.max-tokens" in result.stderr


def test_fix_to_converts_to_another_api(run, tmp_path):
    """``--to`` writes a request that is valid for the other API and the given model."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(BROKEN))
    result = run("fix", str(file), "--to", "openai-responses", "--model", "gpt-5.5", "--json")
    assert result.exit_code == 0
    fixed = json.loads(result.stdout)
    assert fixed["request"]["model"] == "gpt-5.5"
    kinds = [item["type"] for item in fixed["request"]["input"]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert fixed["findings"] == []


REFUSED_OPTIONS = [
    ({"tools": [], "tool_choice": "auto"}, "openai-chat", ["tools", "tool_choice"]),
    ({"temperature": 3}, "openai-chat", ["temperature"]),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "openai-chat", ["max_tokens"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 1_000}, "anthropic", ["thinking"]),
]


@pytest.mark.parametrize(("options", "api", "dropped"), REFUSED_OPTIONS)
def test_fix_drops_options_that_the_api_refuses(run, tmp_path, options, api, dropped):
    """Options that the API refuses whatever the history are removed."""
    model = "gpt-5" if api == "openai-chat" else "claude-sonnet-4-5"
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"model": model, "messages": BROKEN["messages"][:1], **options}))
    result = run("fix", str(file), "--api", api)
    assert result.exit_code == 0
    assert set(options) - set(json.loads(result.stdout)) == set(dropped)


def test_fix_lowers_a_thinking_budget_over_max_tokens(run, tmp_path):
    """A thinking budget over ``max_tokens`` is lowered; the answer's limit stays."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 4_000, "messages": BROKEN["messages"][:1]}
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**body, "thinking": {"type": "enabled", "budget_tokens": 5_000}}))
    fixed = json.loads(run("fix", str(file)).stdout)
    assert fixed["max_tokens"] == 4_000
    assert 1_024 <= fixed["thinking"]["budget_tokens"] < 4_000


@pytest.mark.parametrize(
    ("more", "most"), [({}, 4_096), ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, 6_096)]
)
def test_fix_adds_a_missing_max_tokens_over_the_thinking_budget(run, tmp_path, more, most):
    """A whole Messages request gets a limit above its thinking budget; a JSONL case may be partial and stays so."""
    body = {"model": "claude-sonnet-4-5", "messages": BROKEN["messages"][:1], **more}
    file = tmp_path / "a.json"
    file.write_text(json.dumps(body))
    result = run("fix", str(file))
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {**body, "max_tokens": most}
    assert f"max_tokens is set to {most}" in result.stderr
    line = json.loads(run("fix", str(file), "--jsonl").stdout)
    assert line == {"request": body, "edits": []}


def test_fix_never_invents_a_model(run, tmp_path):
    """A missing model stays a finding unless one is given as an option."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"max_tokens": 9, "messages": BROKEN["messages"][:1]}))
    result = run("fix", str(file), "--api", "anthropic")
    assert result.exit_code == 1
    assert "anthropic.required" in result.stderr
    assert run("fix", str(file), "--api", "anthropic", "--model", "claude-sonnet-4-5").exit_code == 0


FOREIGN = [
    ("anthropic", {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}),
    ("anthropic", {"messages": [{"role": "user", "content": ["hello"]}]}),
    ("anthropic", {"messages": [{"role": "human", "content": "hello"}]}),
    ("anthropic", {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]}),
    ("openai-chat", {"messages": ["hello"]}),
    ("openai-chat", {"messages": [{"role": "user", "content": [{"type": "output_text", "text": "hello"}]}]}),
    ("openai-responses", {"input": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}),
    ("gemini", {"contents": [{"role": "user", "parts": [{"type": "text", "text": "hello"}]}]}),
]


@pytest.mark.parametrize(("api", "body"), FOREIGN)
def test_fix_keeps_text_in_another_apis_shape(run, tmp_path, api, body):
    """Text that a converter left in another API's shape is rewritten for this one, not lost."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"model": "some-model", **body}))
    result = run("fix", str(file), "--api", api)
    assert result.exit_code == 0
    assert "hello" in result.stdout


def test_fix_jsonl_answers_each_line_in_order(run):
    """Each line yields the request and its edits, or an error, never a traceback."""
    lines = [
        json.dumps({"api": "anthropic", "request": BROKEN}),
        "not json",
        "",
        VALID.decode().replace("\n", ""),
        '{"api": "anthropic", "request": 3}',
        '{"request": {"what": 1}}',
        "[" * 100_000,
    ]
    result = run("fix", "-", "--jsonl", stdin="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 1
    assert len(answers) == len(lines)
    assert [edit["rule"] for edit in answers[0]["edits"]] == ["pairing"]
    assert all({"rule", "why"} <= edit.keys() for edit in answers[0]["edits"])
    assert answers[3] == {"request": json.loads(lines[3]), "edits": []}
    for index in (1, 2, 4, 5, 6):
        assert answers[index]["request"] is None
        assert answers[index]["edits"] == []
        assert answers[index]["error"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'"x"', b'{"messages": 3}', b'{"messages": [[]]}'])
def test_fix_answers_any_input_with_an_exit_code(run, tmp_path, data):
    """Any bytes end in a message and an exit code."""
    file = tmp_path / "a.json"
    file.write_bytes(data)
    result = run("fix", str(file))
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.stderr


def test_fix_to_fixes_a_broken_request_before_converting_it(run, tmp_path):
    """Faults are fixed in the request's own API first, so no text is lost in the conversion."""
    file = tmp_path / "a.json"
    messages = [{"role": "human", "content": "KEEP1"}, {"role": "ai", "content": "answer"}]
    messages.append({"role": "user", "content": [{"type": "input_text", "text": "KEEP2"}]})
    file.write_text(json.dumps({"model": "gpt-5", "messages": messages}))
    result = run("fix", str(file), "--api", "openai-chat", "--to", "anthropic", "--model", "claude-sonnet-4-5")
    assert result.exit_code == 0
    assert [(message["role"], message["content"]) for message in json.loads(result.stdout)["messages"]] == [
        ("user", "KEEP1"),
        ("assistant", "answer"),
        ("user", "KEEP2"),
    ]
    assert "openai-chat.roles" in result.stderr


def test_fix_to_refuses_history_stored_with_the_provider(run, tmp_path):
    """A request that refers to a stored response is refused with advice, since a conversion would lose the history."""
    file = tmp_path / "a.json"
    result = {"type": "function_call_output", "call_id": "c", "output": "real"}
    file.write_text(json.dumps({"model": "gpt-5", "previous_response_id": "resp_1", "input": [result]}))
    done = run("fix", str(file), "--to", "anthropic")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "put the messages themselves into the request" in done.stderr


def test_fix_beta_stands_for_the_beta_header(run, tmp_path):
    """With ``--beta`` a field that needs a beta header is valid."""
    file = tmp_path / "a.json"
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    body = {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    file.write_text(json.dumps(body | {"context_management": edits}))
    assert run("fix", str(file), "--beta", "another").exit_code == 1
    result = run("fix", str(file), "--beta", "another", "--beta", "context-management-2025-06-27")
    assert (result.exit_code, result.stdout_bytes) == (0, file.read_bytes())


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["asked", "forced"])
def test_fix_output_never_replaces_a_device_or_pipe(run, tmp_path, options):
    """Only a regular file is replaced, even with --force."""
    file, pipe = tmp_path / "a.json", tmp_path / "pipe"
    file.write_bytes(VALID)
    os.mkfifo(pipe)
    refused = run("fix", str(file), "-o", str(pipe), *options)
    assert (refused.exit_code, pipe.is_fifo()) == (2, True)
    assert "is not a regular file" in refused.stderr


MIXED = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 9,
    "system": "S",
    "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}
    ],
}


def test_lint_and_fix_name_an_image_in_another_apis_shape(run, tmp_path):
    """``lint`` names the other API and what to write here, ``fix`` writes it and reports the path."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(MIXED))
    linted = run("lint", str(file))
    assert linted.exit_code == 1
    for word in ("$.messages[0].content[0]", "a picture in the form of OpenAI Chat Completions; write an image block"):
        assert word in linted.stdout
    result = run("fix", str(file))
    assert result.exit_code == 0
    assert json.loads(result.stdout)["messages"][0]["content"][0]["type"] == "image"
    for word in ("$.messages[0].content[0]", "rewritten in the form of Anthropic Messages", "valid now: 1 change"):
        assert word in result.stderr


def test_lint_and_fix_handle_a_lone_surrogate_in_jsonl(run):
    """``lint`` gives the path of half an emoji, ``fix`` replaces it with U+FFFD, and the case keeps its API."""
    request = {"max_tokens": 9, "messages": [{"role": "user", "content": "a \ud83d"}]}
    line = json.dumps({"api": "anthropic", "model": "claude-opus-4-8", "request": request}).encode() + b"\n"
    verdict = json.loads(run("lint", "-", "--jsonl", stdin=line).stdout)
    assert "$.messages[0].content;" in verdict["findings"][0]["message"]
    result = run("fix", "-", "--jsonl", stdin=line)
    assert result.exit_code == 0
    fixed = json.loads(result.stdout)
    assert fixed["request"] == request | {"messages": [{"role": "user", "content": "a \ufffd"}]}
    assert [edit["rule"] for edit in fixed["edits"]] == ["characters"]


PROVIDER_BODIES = [
    {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    {"max_tokens": 9, "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]},
    {"model": "house", "seed": 1, "messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "go"}]},
    {"model": "house", "system": "s", "max_tokens": 9, "thinking": {"type": "enabled"}, "messages": []},
    {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
]


@pytest.mark.parametrize("provider", PROVIDER_NAMES)
@pytest.mark.parametrize("body", PROVIDER_BODIES)
def test_fix_for_a_provider_changes_nothing_the_second_time(provider, body):
    """A fixed body is taken for the same API again, although what told it may be gone, and stays as it is."""
    first = fix_request_body(json.dumps(body).encode(), FixOptions(provider=provider))
    second = fix_request_body(first.body, FixOptions(provider=provider))
    assert (second.api, second.body) == (first.api, first.body)


def test_fix_for_vertex_takes_the_model_out_and_puts_the_version_in(run):
    """On Vertex AI the address names the model, and the body its version."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
    result = run("fix", "-", "--provider", "vertex", "--model", "claude-sonnet-4-5", stdin=json.dumps(body))
    fixed = {**body, "anthropic_version": "vertex-2023-10-16"}
    del fixed["model"]
    assert json.loads(result.stdout) == fixed


def test_fix_goes_by_the_provider_in_holdfast_toml(run, home):
    """The line for the model names the provider whose rules hold."""
    body = json.dumps({"model": "house-1", "seed": 7, "messages": [{"role": "user", "content": "hi"}]})
    assert json.loads(run("fix", "-", stdin=body).stdout)["seed"] == 7
    (home / "holdfast.toml").write_text('[[model]]\nmatch = "house-*"\nprovider = "mistral"\n')
    assert json.loads(run("fix", "-", stdin=body).stdout)["random_seed"] == 7


def test_fix_warns_of_a_provider_without_rules_for_the_api(run):
    """The warning is on standard error and in the record, and the request is still fixed by the API's rules."""
    body = json.dumps({"contents": [{"role": "user", "parts": [{"text": "hi"}]}]})
    result = run("fix", "-", "--provider", "groq", "--json", stdin=body)
    assert result.exit_code == 0
    assert "groq has no rules for gemini; known: openai-chat" in result.stderr
    assert [finding["rule"] for finding in json.loads(result.stdout)["findings"]] == ["provider"]
