"""The nine tools: what the model is told of them, and one call from its arguments to its result.

Whatever a model sends ends in a result that it can act on; nothing is raised for it.
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
from holdfast.agent.arguments import given, schema
from holdfast.agent.workspace import Answered, Workplace
from holdfast.engine import recall
from holdfast.errors import FormatError, HoldfastError
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.text.cutting import one_line
from holdfast.providers.common.request_options import Tool

_HALF = re.compile(r"[\ud800-\udfff]")
"""Half a character, which no API takes: it becomes U+FFFD."""


ITEM_CHARS = 300
"""[H] Characters of an item of a plan that are told back."""


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """One thing to do."""

    text: Annotated[str, Meta(description="What is to be done.")]
    status: Literal["open", "active", "done"] = "open"


class Todo(Struct, frozen=True, forbid_unknown_fields=True):
    """Keeps the plan of a task with several steps: all of its items, each time; the list replaces the one before."""

    items: list[Item]


class Spec(Struct, frozen=True):
    """One tool: how it is told, and how it is done."""

    name: str
    about: str
    parameters: dict[str, Any]
    run: Callable[[Workplace, str], Awaitable[Answered]]
    repeats: bool = True
    """Whether doing it twice does no more than doing it once."""

    @property
    def tool(self) -> Tool:
        """The tool as a request offers it."""
        return Tool(self.name, self.about, self.parameters)


def _spec(name: str, kind: type[Struct], do: Callable[[Workplace, Any], Any], *, repeats: bool = True) -> Spec:
    """Return the tool whose arguments are a ``kind``, done by ``do``: in a thread, unless it can wait.

    What does no harm is left alone there when somebody stops the work.
    """

    async def run(place: Workplace, arguments: str) -> Answered:
        asked = given(name, arguments, kind)
        if iscoroutinefunction(do):
            return cast("Answered", await do(place, asked))
        return Answered(await to_thread.run_sync(do, place, asked, abandon_on_cancel=repeats))

    return Spec(name, " ".join((kind.__doc__ or "").split()), schema(kind), run, repeats)


async def _fetch(place: Workplace, arguments: str) -> Answered:
    try:
        asked = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(
            f"these are no arguments of fetch_result: {error}; give id, lines, chars, search or page"
        ) from None
    return await place.recall(asked)


def _plan(_: Workplace, asked: Todo) -> str:
    done = sum(item.status == "done" for item in asked.items)
    lines = [f"- [{item.status}] {one_line(item.text, ITEM_CHARS)}" for item in asked.items]
    return "\n".join([f"[{done} of {len(lines)} done]", *lines])


_FETCHED = {"type": "object", "properties": recall.PARAMETERS, "additionalProperties": False}
_ABOUT_FETCH = f"{recall.ABOUT}\nWhere a preview or a notice says recall(…), call this with the same arguments."
SPECS = {
    spec.name: spec
    for spec in (
        _spec("read", files.Read, files.read),
        _spec("write", files.Write, files.write, repeats=False),
        _spec("edit", files.Edit, files.edit, repeats=False),
        _spec("bash", shell.Bash, shell.bash, repeats=False),
        _spec("grep", shell.Grep, shell.grep),
        _spec("find", shell.Find, shell.find),
        _spec("ls", files.Ls, files.ls),
        Spec("fetch_result", _ABOUT_FETCH, _FETCHED, _fetch),
        _spec("todo", Todo, _plan),
    )
}
"""The nine tools by their names."""
TOOLS = tuple(spec.tool for spec in SPECS.values())
"""The nine tools as a request offers them."""
_ADVICE = {
    errno.E2BIG: "write it into a file, and give the file",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.ENOSPC: "make room first, or say that there is none",
    errno.EACCES: "take another path, or say that this one is closed to you",
    errno.EPERM: "take another path, or say that this one is closed to you",
    errno.EROFS: "take another path, or say that this one is closed to you",
}
"""What a model can do where looking around does not help."""
_ALSO = {recall.NAME: "fetch_result"}
"""Names that stand for one of them: previews say ``recall``."""


def spec_of(name: str) -> Spec | None:
    """Return the tool called ``name``, if there is one."""
    return SPECS.get(_ALSO.get(name, name))


async def answered(place: Workplace, call: ToolCall) -> ToolResult:
    """Return the result of ``call``, once it is done; one that cannot be done is a result that says why."""
    spec = spec_of(call.name)
    if spec is None:
        return result(call, f"there is no tool {call.name!r}; there are: {', '.join(SPECS)}", is_error=True)
    try:
        told = await spec.run(place, call.arguments)
    except HoldfastError as error:
        return result(call, str(error), is_error=True)
    except (OSError, MemoryError) as error:
        return result(call, _of_system(error), is_error=True)
    return result(call, told.text, is_error=told.is_error)


def result(call: ToolCall, text: str, *, is_error: bool = False) -> ToolResult:
    """Return the result of ``call`` that says ``text``."""
    return ToolResult(call.id, call.name, (Text(_HALF.sub("\ufffd", text)),), is_error)


def _of_system(error: BaseException) -> str:
    if isinstance(error, OSError):
        advice = _ADVICE.get(error.errno or 0, "look with ls or find what there is")
        return f"{(error.strerror or str(error)).lower()}; {advice}"
    return "there is not enough memory for this; ask for less"
