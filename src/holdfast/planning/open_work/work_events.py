"""The values of this package: an open item, what opens and closes items, and how a client's convention is described.

A convention reads two kinds of text only: results of the client's own tools, by the name of the tool, and messages that
the client wrote into the conversation itself, by a marker that they hold. What a user says opens and closes nothing,
unless the user pastes such a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from holdfast.messages.message import get_result_text
from holdfast.messages.parts import ToolCall, ToolResult
from holdfast.messages.references import decode_call_arguments

WorkKind: TypeAlias = Literal["sub-agent", "approval", "shell", "call", "message", "to-do"]
"""What an item is; the words are shown to the model.

They stand in the order in which items are listed: what was started must not be started twice, and what waits for
somebody must not be forgotten; to-do items come last, since they tell of what was planned, not of what goes on.
"""
STARTED_KINDS: tuple[WorkKind, ...] = ("sub-agent", "approval", "shell")
"""Kinds with ids that the client's tools take. They are read back from earlier summaries; the others are found in the
messages that stay, or are lists of their own.
"""


class OpenItem(Struct, frozen=True):
    """Something that was started and has not ended."""

    kind: WorkKind
    id: str
    """The id that the client's tools take; empty for to-do items and messages without one."""
    name: str = ""
    """What it is about: a command, a description, the text of a to-do item."""
    state: str = ""
    """Its state in the client's words (``in_progress``), or empty if it simply runs."""
    since: int = 0
    """Index of the message that told of its start."""
    last_told: int = 0
    """Index of the newest message that says that it is open; a request that shows that message need not repeat it."""
    aliases: tuple[str, ...] = ()
    """Other ids under which the client tells of its end."""


class WorkStarted(Struct, frozen=True):
    """Something was started, or is told to be open. Of a known id it renews the state, and a name that was missing."""

    kind: WorkKind
    id: str
    name: str = ""
    state: str = ""
    aliases: tuple[str, ...] = ()


class WorkContinues(Struct, frozen=True):
    """What has this id is still open; an unknown id is nobody's work, and ignored."""

    id: str
    state: str = ""


class WorkEnded(Struct, frozen=True):
    """What has this id, or an id that begins with it if ``is_prefix``, has ended."""

    id: str
    is_prefix: bool = False


class NamedWorkEnded(Struct, frozen=True):
    """Everything has ended whose id, or another id of it, is a word of this text."""

    text: str


class TodoItem(Struct, frozen=True):
    """An item of a to-do list."""

    text: str
    status: str = ""
    id: str = ""


class TodosReplaced(Struct, frozen=True):
    """The whole to-do list was written; it replaces the one before."""

    items: tuple[TodoItem, ...]


class TodoChanged(Struct, frozen=True):
    """One item of the to-do list was added or changed; empty fields stay as they were."""

    item: TodoItem


WorkEvent: TypeAlias = WorkStarted | WorkContinues | WorkEnded | NamedWorkEnded | TodosReplaced | TodoChanged


class ToolExchange(Struct, frozen=True, dict=True):
    """A call and its result. Arguments and text are decoded only if a convention asks for them."""

    call: ToolCall
    result: ToolResult

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the call; empty if they are no JSON object."""
        arguments = decode_call_arguments(self.call)
        return arguments if isinstance(arguments, dict) else {}

    @cached_property
    def text(self) -> str:
        """The text of the result."""
        return get_result_text(self.result)

    @property
    def start(self) -> str:
        """The beginning of the text, where clients say what became of the call."""
        return self.text[:MAX_STATUS_CHARS]

    @property
    def end(self) -> str:
        """The end of the text, where clients say it if output stands first."""
        return self.text[-MAX_STATUS_CHARS:]

    def get_argument(self, *names: str) -> str:
        """Return the first argument of these names that is a text or a number, as text; empty without one."""
        for name in names:
            value = self.arguments.get(name)
            if isinstance(value, str) and value.strip():
                return value.strip()
            if isinstance(value, int) and not isinstance(value, bool):
                return str(value)
        return ""


MAX_STATUS_CHARS = 600
"""Characters at either end of a result in which a client's status line is looked for. The lines seen stand within 200;
the rest is the program's own output, which may hold the same words."""

ResultReader: TypeAlias = Callable[[ToolExchange], Iterator[WorkEvent]]
"""Reads what a result of one tool says about open work."""
NoteReader: TypeAlias = Callable[[str], Iterator[WorkEvent]]
"""Reads what a message that the client wrote says about open work."""


class Convention(Struct, frozen=True):
    """How one client tells of work in the background."""

    client: str
    result_readers: Mapping[str, ResultReader]
    """By the name of the tool, in lower case and without the name of its server."""
    note_readers: Mapping[str, NoteReader] = {}
    """By the marker that a text of the client holds."""
