"""The agent's nine tools: their schemas, and how broken calls are answered."""

from __future__ import annotations

import json

import anyio
import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.agent.tools import TOOL_DEFINITIONS, TOOL_SPECS, run_tool_call
from holdfast.agent.workspace import deny_command, open_workspace
from holdfast.engine.environment.environment import Environment
from holdfast.engine.recall import RecallAnswer
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall
from holdfast.messages.size.tokens import build_sized_message
from holdfast.providers.registry import API_NAMES
from holdfast.providers.requests.request_body import build_request_body
from holdfast.providers.rules.validate import validate_request


def test_tool_definitions_have_the_documented_names():
    """The nine tools have the names that the documentation uses."""
    assert [tool.name for tool in TOOL_DEFINITIONS] == [
        "read",
        "write",
        "edit",
        "bash",
        "grep",
        "find",
        "ls",
        "fetch_result",
        "todo",
    ]


@pytest.mark.parametrize("tool", TOOL_DEFINITIONS, ids=lambda tool: tool.name)
def test_tool_definitions_have_self_contained_schemas(tool):
    """Each schema is a valid JSON Schema object without references, and the tool has a description."""
    jsonschema.Draft202012Validator.check_schema(tool.schema)
    assert tool.schema["type"] == "object"
    assert tool.schema["additionalProperties"] is False
    assert "$ref" not in json.dumps(tool.schema)
    assert len(tool.description) > 40
    assert "  " not in tool.description


@pytest.mark.parametrize("api", API_NAMES)
def test_tool_definitions_are_valid_for_every_api(api):
    """A request with the nine tools keeps the rules of each API."""
    fields = Environment(tools=TOOL_DEFINITIONS).build_fields(api)
    request = build_request_body(
        api, "some-model", [build_sized_message(Message.from_text("user", "Go."))], setup_fields=fields
    )
    assert validate_request(request, api=api) == ()


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("fly", "{}", "there is no tool 'fly'; there are: read, write"),
        ("Read", '{"path": "a"}', "there is no tool 'Read'"),
        ("", "{}", "there is no tool ''"),
        ("read", '{"path": "a', "are not JSON"),
        ("read", "", "missing required field `path`; call read again with path (string, required), lines (string)"),
        ("read", "[1]", "are not an object: [1]"),
        ("read", '"a.txt"', "are not an object"),
        ("read", '{"path": "a", "mode": "r"}', "unknown field `mode`"),
        ("read", '{"path": ["a"]}', "Expected `str`, got `array` - at `$.path`"),
        ("read", '{"path": ""}', "the path is empty"),
        ("read", '{"path": "a\\u0000b"}', "is not a path"),
        ("read", json.dumps({"path": "a" * 5_000}), "file name too long"),
        (
            "todo",
            '{"items": [{"text": "a", "status": "later"}]}',
            "Invalid enum value 'later' - at `$.items[0].status`",
        ),
        ("bash", '{"command": "echo \\u0000"}', "the command has a NUL character"),
        ("bash", json.dumps({"command": "a" * 3_000_000}), "argument list too long; write it into a file"),
        ("read", json.dumps({"path": "a" * 300}), "file name too long; give a shorter name"),
        ("fetch_result", "{", "the arguments do not fit fetch_result"),
        ("read", "[" * 100_000, "the arguments of read"),
    ],
)
def test_run_tool_call_explains_a_broken_call_to_the_model(call, name, arguments, why):
    """Unknown tools and broken, missing, extra or wrong arguments give error results that describe the right call."""
    text, is_error = call(name, arguments)
    assert is_error
    assert why in text
    assert len(text) < 1_000
    assert "Traceback" not in text


def test_run_tool_call_accepts_lenient_arguments(call, folder):
    """Numbers as text, null for an absent argument, and no arguments where none are required are accepted."""
    assert call("bash", '{"command": "true", "seconds": "5"}') == ("(no output)\n[exit code 0]", False)
    assert call("ls", '{"folder": null}') == ("[. is empty]", False)
    assert call("ls", "") == ("[. is empty]", False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.sampled_from([*sorted(set(TOOL_SPECS) - {"grep", "bash"}), "recall", "fly"]),
    st.one_of(
        st.text(max_size=40),
        st.dictionaries(
            st.sampled_from(["path", "text", "old", "new", "folder", "pattern", "items", "lines", "id", "x"]),
            st.recursive(
                st.none() | st.booleans() | st.integers() | st.text(alphabet="a./~\0\ud800é*[", max_size=8),
                lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.just("text"), inner),
                max_leaves=4,
            ),
        ).map(json.dumps),
    ),
)
def test_run_tool_call_never_raises_or_writes_outside_the_folder(folder, name, arguments):
    """Any call gets a result, and no file appears outside the folder."""
    result = anyio.run(
        run_tool_call, open_workspace(folder, ask_permission=deny_command), ToolCall("c", name, arguments)
    )
    assert result.call_id == "c"
    assert result.content
    result.content[0].text.encode()
    assert {path.name for path in folder.parent.iterdir()} == {"work", "secret.txt"}


def test_run_tool_call_treats_recall_as_fetch_result(call, workspace):
    """Previews call the tool ``recall``; it is answered like ``fetch_result``, with the same arguments."""
    received = []

    async def recall(arguments):
        received.append(dict(arguments))
        return RecallAnswer("lines 1-2", is_error=False)

    with_recall = replace(workspace, recall=recall)
    for name in ("fetch_result", "recall"):
        assert call(name, '{"id": "3fa9c1d2e4f5", "lines": "1-2"}', at=with_recall) == ("lines 1-2", False)
    assert received == [{"id": "3fa9c1d2e4f5", "lines": "1-2"}] * 2
    assert call("fetch_result", "{}")[1], "without a session there is nothing to read back"


def test_todo_returns_the_plan_with_a_count_of_done_items(call):
    """The result repeats the plan and counts the finished items."""
    items = [{"text": "look", "status": "done"}, {"text": "mend\nit"}]
    assert call("todo", items=items) == ("[1 of 2 done]\n- [done] look\n- [open] mend it", False)


def test_read_accepts_skill_paths_inside_the_skill_folder(call, workspace, folder):
    """``skill:NAME`` reads a skill's file or one beside it; an unknown name or a path outside is refused."""
    home = folder.parent / "skills" / "tides"
    home.mkdir(parents=True)
    (home / "SKILL.md").write_text("---\nname: tides\ndescription: d\n---\nLook at the moon.")
    (home / "table.txt").write_text("high 4:10")
    from holdfast.engine.environment.environment import load_environment

    with_skills = replace(workspace, skills=load_environment(folder, skills=[home.parent]).skills)
    assert call("read", path="skill:tides", at=with_skills)[0].endswith("Look at the moon.")
    assert call("read", path="skill:tides/table.txt", at=with_skills) == ("high 4:10", False)
    for path, why in {"skill:moon": "there are: tides", "skill:tides/../../secret.txt": "outside"}.items():
        text, is_error = call("read", path=path, at=with_skills)
        assert is_error
        assert why in text
    assert call("write", path="skill:tides", text="x", at=with_skills)[0].startswith("wrote skill:tides")


@pytest.mark.parametrize("name", ["gone", "file"])
def test_open_workspace_rejects_a_path_that_is_not_a_folder(folder, name):
    """An agent needs an existing folder to work in."""
    (folder / "file").touch()
    with pytest.raises(FormatError, match="folder"):
        open_workspace(folder / name)
