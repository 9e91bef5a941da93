"""``holdfast fix``: the request on one stream, what was changed on the other, and every wrong input answered."""

from __future__ import annotations

import json
import os

import pytest

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


def test_a_valid_request_keeps_its_bytes(run, tmp_path):
    """What needs no repair is printed as it came, to the last byte, and that is said."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    done = run("fix", str(file))
    assert done.exit_code == 0
    assert done.stdout_bytes == VALID
    assert "nothing changed" in done.stderr


def test_a_request_of_another_api_is_not_as_it_was(run, tmp_path):
    """One that was valid, and of which nothing had to be left out, is said to be converted."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    done = run("fix", str(file), "--to", "openai-chat")
    assert done.stderr == "valid now: converted to openai-chat; nothing was left out\n"
    assert json.loads(done.stdout)["messages"]


def test_another_model_is_no_other_api(run, tmp_path):
    """Where only the name of the model is another, that is what is said to be changed."""
    file = tmp_path / "a.json"
    file.write_bytes(VALID)
    done = run("fix", str(file), "--model", "claude-sonnet-4-5-20250929")
    assert json.loads(done.stdout) == json.loads(VALID) | {"model": "claude-sonnet-4-5-20250929"}
    assert "$.model" in done.stderr
    assert "converted" not in done.stderr
    assert "valid now: 1 change" in done.stderr


def test_a_broken_request_is_repaired_and_explained(run, tmp_path):
    """The request goes to standard output alone, each change with its rule, place and reason to standard error."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(BROKEN))
    done = run("fix", str(file))
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert [one["role"] for one in made["messages"]] == ["user", "assistant", "user", "user"]
    assert made["messages"][2]["content"][0]["tool_use_id"] == "t1"
    for word in ("pairing", "$.messages[2]", "added for calls", "valid now: 1 change"):
        assert word in done.stderr
    file.write_text(done.stdout)
    assert run("fix", str(file)).stdout_bytes == done.stdout_bytes


def test_the_request_may_go_to_a_file(run, tmp_path):
    """``--output`` writes the request there and nothing to standard output."""
    file, out = tmp_path / "a.json", tmp_path / "b.json"
    file.write_text(json.dumps(BROKEN))
    done = run("fix", str(file), "-o", str(out))
    assert done.exit_code == 0
    assert done.stdout == ""
    assert json.loads(out.read_text())["model"] == "claude-sonnet-4-5"


@pytest.mark.parametrize("options", [(), ("--jsonl",), ("--json",)])
def test_a_file_that_is_there_is_replaced_by_force_alone(run, tmp_path, options):
    """As ``export`` and ``recall`` do it, whatever is printed: what lay there is nobody's to lose, the input either."""
    file, out = tmp_path / "a.json", tmp_path / "notes.txt"
    file.write_text(json.dumps(BROKEN))
    out.write_text("mine")
    for there, kept in ((out, "mine"), (file, json.dumps(BROKEN))):
        refused = run("fix", str(file), "-o", str(there), *options)
        assert (refused.exit_code, there.read_text()) == (2, kept)
        assert "already exists; give another name, or --force to replace it" in refused.stderr
    done = run("fix", str(file), "-o", str(out), "--force", *options)
    assert done.exit_code == 0
    assert json.loads(out.read_text()).keys() & {"model", "request"}
    assert bool(done.stdout) is ("--json" in options)


def test_what_cannot_be_mended_is_left_and_told(run, tmp_path):
    """What has no one right mending stays, is told, and makes exit code 1."""
    file = tmp_path / "a.json"
    file.write_text(
        json.dumps({"model": "claude-sonnet-4-5", "max_tokens": "many", "messages": BROKEN["messages"][:1]})
    )
    done = run("fix", str(file))
    assert done.exit_code == 1
    assert json.loads(done.stdout)["max_tokens"] == "many"
    assert "anthropic.max-tokens" in done.stderr


def test_another_api(run, tmp_path):
    """``--to`` makes a request of another API, valid there, for the model that is named."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(BROKEN))
    done = run("fix", str(file), "--to", "openai-responses", "--model", "gpt-5.5", "--json")
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert made["request"]["model"] == "gpt-5.5"
    kinds = [item["type"] for item in made["request"]["input"]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert made["findings"] == []


OPTIONS = [
    ({"tools": [], "tool_choice": "auto"}, "openai-chat", ["tools", "tool_choice"]),
    ({"temperature": 3}, "openai-chat", ["temperature"]),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "openai-chat", ["max_tokens"]),
    ({"thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 1_000}, "anthropic", ["thinking"]),
]


@pytest.mark.parametrize(("options", "api", "gone"), OPTIONS)
def test_options_with_one_right_mending(run, tmp_path, options, api, gone):
    """Options that the API refuses whatever the history, and nobody misses, are taken out."""
    model = "gpt-5" if api == "openai-chat" else "claude-sonnet-4-5"
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"model": model, "messages": BROKEN["messages"][:1], **options}))
    done = run("fix", str(file), "--api", api)
    assert done.exit_code == 0
    assert set(options) - set(json.loads(done.stdout)) == set(gone)


def test_a_budget_under_the_limit(run, tmp_path):
    """A thinking budget over ``max_tokens`` is made smaller, not the answer longer."""
    body = {"model": "claude-sonnet-4-5", "max_tokens": 4_000, "messages": BROKEN["messages"][:1]}
    file = tmp_path / "a.json"
    file.write_text(json.dumps({**body, "thinking": {"type": "enabled", "budget_tokens": 5_000}}))
    made = json.loads(run("fix", str(file)).stdout)
    assert made["max_tokens"] == 4_000
    assert 1_024 <= made["thinking"]["budget_tokens"] < 4_000


@pytest.mark.parametrize(
    ("more", "most"), [({}, 4_096), ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, 6_096)]
)
def test_a_limit_that_must_be_told_is_added(run, tmp_path, more, most):
    """A whole request of the Messages API is given a limit over its thinking; a line may be a part, and stays one."""
    body = {"model": "claude-sonnet-4-5", "messages": BROKEN["messages"][:1], **more}
    file = tmp_path / "a.json"
    file.write_text(json.dumps(body))
    done = run("fix", str(file))
    assert done.exit_code == 0
    assert json.loads(done.stdout) == {**body, "max_tokens": most}
    assert f"max_tokens is set to {most}" in done.stderr
    line = json.loads(run("fix", str(file), "--jsonl").stdout)
    assert line == {"request": body, "edits": []}


def test_a_model_is_not_made_up(run, tmp_path):
    """Which model a whole request is for nobody can know: that is left, unless it is told beside the request."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"max_tokens": 9, "messages": BROKEN["messages"][:1]}))
    done = run("fix", str(file), "--api", "anthropic")
    assert done.exit_code == 1
    assert "anthropic.required" in done.stderr
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
def test_words_in_another_form_are_kept(run, tmp_path, api, body):
    """Words that a converter left in another API's form are said in this one's, not lost."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"model": "some-model", **body}))
    done = run("fix", str(file), "--api", api)
    assert done.exit_code == 0
    assert "hello" in done.stdout


def test_a_case_a_line(run):
    """``--jsonl`` answers each line in order: the request and its edits, or what was wrong; never a traceback."""
    lines = [
        json.dumps({"api": "anthropic", "request": BROKEN}),
        "not json",
        "",
        VALID.decode().replace("\n", ""),
        '{"api": "anthropic", "request": 3}',
        '{"request": {"what": 1}}',
        "[" * 100_000,
    ]
    done = run("fix", "-", "--jsonl", given="\n".join(lines) + "\n")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.exit_code == 1
    assert len(answers) == len(lines)
    assert [edit["rule"] for edit in answers[0]["edits"]] == ["pairing"]
    assert all({"rule", "why"} <= edit.keys() for edit in answers[0]["edits"])
    assert answers[3] == {"request": json.loads(lines[3]), "edits": []}
    for place in (1, 2, 4, 5, 6):
        assert answers[place]["request"] is None
        assert answers[place]["edits"] == []
        assert answers[place]["error"]


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b'"x"', b'{"messages": 3}', b'{"messages": [[]]}'])
def test_wrong_input_is_answered(run, tmp_path, data):
    """Anything at all ends in a message and an exit code."""
    file = tmp_path / "a.json"
    file.write_bytes(data)
    done = run("fix", str(file))
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.stderr


def test_another_api_of_a_broken_request(run, tmp_path):
    """What is wrong with a request in its own API is mended before it is converted, so that nothing it says is lost."""
    file = tmp_path / "a.json"
    said = [{"role": "human", "content": "KEEP1"}, {"role": "ai", "content": "answer"}]
    said.append({"role": "user", "content": [{"type": "input_text", "text": "KEEP2"}]})
    file.write_text(json.dumps({"model": "gpt-5", "messages": said}))
    done = run("fix", str(file), "--api", "openai-chat", "--to", "anthropic", "--model", "claude-sonnet-4-5")
    assert done.exit_code == 0
    assert [(one["role"], one["content"]) for one in json.loads(done.stdout)["messages"]] == [
        ("user", "KEEP1"),
        ("assistant", "answer"),
        ("user", "KEEP2"),
    ]
    assert "openai-chat.roles" in done.stderr


def test_history_with_the_provider_is_an_error(run, tmp_path):
    """A request that refers to what its provider holds is refused in words, not answered with one that lost it."""
    file = tmp_path / "a.json"
    result = {"type": "function_call_output", "call_id": "c", "output": "real"}
    file.write_text(json.dumps({"model": "gpt-5", "previous_response_id": "resp_1", "input": [result]}))
    done = run("fix", str(file), "--to", "anthropic")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "put the messages themselves into the request" in done.stderr


def test_betas_of_the_headers(run, tmp_path):
    """``--beta`` tells what stands in the headers: with it a field that needs one is right as it is."""
    file = tmp_path / "a.json"
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    body = {"model": "claude-opus-4-6", "max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}
    file.write_text(json.dumps(body | {"context_management": edits}))
    assert run("fix", str(file), "--beta", "another").exit_code == 1
    done = run("fix", str(file), "--beta", "another", "--beta", "context-management-2025-06-27")
    assert (done.exit_code, done.stdout_bytes) == (0, file.read_bytes())


@pytest.mark.parametrize("options", [(), ("--force",)], ids=["asked", "forced"])
def test_what_is_no_file_is_never_replaced(run, tmp_path, options):
    """A device or a pipe is no file that another one may stand in place of."""
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


def test_another_apis_picture_is_carried_over_and_told(run, tmp_path):
    """``lint`` says whose form it is and what stands here for it, ``fix`` writes that and says so, with the place."""
    file = tmp_path / "a.json"
    file.write_text(json.dumps(MIXED))
    found = run("lint", str(file))
    assert found.exit_code == 1
    for word in ("$.messages[0].content[0]", "a picture in the form of OpenAI Chat Completions; write an image block"):
        assert word in found.stdout
    done = run("fix", str(file))
    assert done.exit_code == 0
    assert json.loads(done.stdout)["messages"][0]["content"][0]["type"] == "image"
    for word in ("$.messages[0].content[0]", "rewritten in the form of Anthropic Messages", "valid now: 1 change"):
        assert word in done.stderr


def test_half_of_a_character_is_mended_in_a_line_too(run):
    """A case with half of an emoji keeps its API: ``lint`` says where the half is, ``fix`` puts U+FFFD there."""
    request = {"max_tokens": 9, "messages": [{"role": "user", "content": "a \ud83d"}]}
    line = json.dumps({"api": "anthropic", "model": "claude-opus-4-8", "request": request}).encode() + b"\n"
    found = json.loads(run("lint", "-", "--jsonl", given=line).stdout)
    assert "$.messages[0].content;" in found["findings"][0]["message"]
    done = run("fix", "-", "--jsonl", given=line)
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert made["request"] == request | {"messages": [{"role": "user", "content": "a \ufffd"}]}
    assert [edit["rule"] for edit in made["edits"]] == ["characters"]
