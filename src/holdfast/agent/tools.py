"""The nine tools: their definitions for the model, and running one call from its arguments to its result.

Whatever a model sends gets a result that it can act on; nothing is raised for it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Annotated, Any, Literal, cast

import msgspec
from anyio import to_thread
from msgspec import Meta, Struct

from holdfast.agent import files, shell
from holdfast.agent.arguments import make_json_schema, parse_tool_arguments
from holdfast.agent.workspace import ToolAnswer, Workspace
from holdfast.engine import recall
from holdfast.errors import FormatError, HoldfastError
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.providers.common.portable_options import FunctionTool

_SURROGATE_PATTERN = re.compile(r"[\ud800-\udfff]")
"""Lone surrogates, which no API accepts; they become U+FFFD."""


ITEM_CHARS = 300
"""Characters of an item that the tool ``todo`` repeats: the model wrote it itself a moment ago. Chosen by judgement."""


class TodoItem(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to do."""

    text: Annotated[str, Meta(description="What is to be done.")]
    status: Literal["open", "active", "done"] = "open"


class TodoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Keeps the plan of a task with several steps: all of its items, each time; the list replaces the one before."""

    items: list[TodoItem]


class ToolSpec(Struct, frozen=True):
    """One tool: its definition for the model, and the function that runs it."""

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[[Workspace, str], Awaitable[ToolAnswer]]
    is_repeatable: bool = True
    """Whether running it twice does no more than running it once."""

    @property
    def definition(self) -> FunctionTool:
        """The tool as a request offers it to the model."""
        return FunctionTool(self.name, self.description, self.parameters)


def _make_tool_spec(
    name: str,
    struct: type[Struct],
    function: Callable[[Workspace, Any], Any],
    *,
    is_repeatable: bool = True,
) -> ToolSpec:
    """Build the tool with a ``struct`` for its arguments. A ``function`` that is not async runs in a thread.

    If the work is stopped, a repeatable tool is left alone in its thread; any other one is waited for.
    """

    async def run(workspace: Workspace, arguments: str) -> ToolAnswer:
        parsed_arguments = parse_tool_arguments(name, arguments, struct)
        if iscoroutinefunction(function):
            return cast("ToolAnswer", await function(workspace, parsed_arguments))
        text = await to_thread.run_sync(
            function,
            workspace,
            parsed_arguments,
            abandon_on_cancel=is_repeatable,
        )
        return ToolAnswer(text)

    # The docstring of the struct is the description that the model reads.
    description = " ".join((struct.__doc__ or "").split())
    return ToolSpec(name, description, make_json_schema(struct), run, is_repeatable)


async def _run_fetch_result(workspace: Workspace, arguments: str) -> ToolAnswer:
    try:
        values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"the arguments do not fit fetch_result: {error}"
        raise FormatError(f"{message}; give id, lines, chars, search or page") from None
    return await workspace.recall(values)


def _run_todo(_: Workspace, todo_list: TodoArguments) -> str:
    done_count = sum(item.status == "done" for item in todo_list.items)
    lines = [f"- [{item.status}] {flatten_to_line(item.text, ITEM_CHARS)}" for item in todo_list.items]
    return "\n".join([f"[{done_count} of {len(lines)} done]", *lines])


_FETCH_PARAMETERS = {"type": "object", "properties": recall.RECALL_PARAMETERS, "additionalProperties": False}
_FETCH_DESCRIPTION = (
    f"{recall.RECALL_DESCRIPTION}\nWhere a preview or a notice says recall(…), call this with the same arguments."
)
_ALL_SPECS = (
    _make_tool_spec("read", files.ReadArguments, files.read_file),
    _make_tool_spec("write", files.WriteArguments, files.write_file, is_repeatable=False),
    _make_tool_spec("edit", files.EditArguments, files.edit_file, is_repeatable=False),
    _make_tool_spec("bash", shell.BashArguments, shell.run_bash, is_repeatable=False),
    _make_tool_spec("grep", shell.GrepArguments, shell.run_grep),
    _make_tool_spec("find", shell.FindArguments, shell.run_find),
    _make_tool_spec("ls", files.ListArguments, files.list_folder),
    ToolSpec("fetch_result", _FETCH_DESCRIPTION, _FETCH_PARAMETERS, _run_fetch_result),
    _make_tool_spec("todo", TodoArguments, _run_todo),
)
TOOL_SPECS = {spec.name: spec for spec in _ALL_SPECS}
"""The nine tools by name."""
TOOL_DEFINITIONS = tuple(spec.definition for spec in TOOL_SPECS.values())
"""The nine tools as a request offers them to the model."""
_ERRNO_ADVICE = {
    errno.E2BIG: "write it into a file, and give the file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOSPC: "make room first, or say that there is none",
    errno.EACCES: "take another path, or say that this one is closed to you",
    errno.EPERM: "take another path, or say that this one is closed to you",
    errno.EROFS: "take another path, or say that this one is closed to you",
}
"""What a model can do about errors of the system for which looking around does not help."""
_TOOL_ALIASES = {recall.RECALL_TOOL_NAME: "fetch_result"}
"""Other names for a tool: previews say ``recall``, so models call that too."""


def find_tool_spec(name: str) -> ToolSpec | None:
    """Return the tool called ``name``, or None."""
    return TOOL_SPECS.get(_TOOL_ALIASES.get(name, name))


async def run_tool_call(workspace: Workspace, call: ToolCall) -> ToolResult:
    """Run ``call`` and return its result; if it cannot be run, the result is an error that says why."""
    spec = find_tool_spec(call.name)
    if spec is None:
        message = f"there is no tool {call.name!r}; there are: {', '.join(TOOL_SPECS)}"
        return make_tool_result(call, message, is_error=True)
    try:
        answer = await spec.run(workspace, call.arguments)
    except HoldfastError as error:
        return make_tool_result(call, str(error), is_error=True)
    except (OSError, MemoryError) as error:
        return make_tool_result(call, _describe_system_error(error), is_error=True)
    return make_tool_result(call, answer.text, is_error=answer.is_error)


def make_tool_result(call: ToolCall, text: str, *, is_error: bool = False) -> ToolResult:
    """Build the result of ``call`` with ``text`` as its content."""
    valid_text = _SURROGATE_PATTERN.sub("\ufffd", text)
    return ToolResult(call.id, call.name, (Text(valid_text),), is_error)


def _describe_system_error(error: BaseException) -> str:
    if isinstance(error, OSError):
        advice = _ERRNO_ADVICE.get(error.errno or 0, "look with ls or find for the right path")
        description = error.strerror or str(error)
        return f"{description.lower()}; {advice}"
    return "there is not enough memory for this; ask for less"
