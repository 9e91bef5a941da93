"""``OpenItems``: what is open after the events so far, one event at a time."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.planning.open_work.work_events import (
    NamedWorkEnded,
    OpenItem,
    TodoChanged,
    TodoItem,
    TodosReplaced,
    WorkContinues,
    WorkEnded,
    WorkEvent,
    WorkStarted,
)

_DONE_STATUSES = frozenset({"done", "completed", "complete", "cancelled", "canceled", "deleted"})
"""Words for a to-do item that nobody has to do any more."""


class OpenItems:
    """What is open after the events so far: work by its id, in the order of its start, and the to-do list."""

    def __init__(self) -> None:
        self._work: dict[str, OpenItem] = {}
        self._todos: list[OpenItem] = []

    @property
    def work(self) -> list[OpenItem]:
        """Everything open but to-do items."""
        return list(self._work.values())

    @property
    def todos(self) -> list[OpenItem]:
        """The to-do items that are not done, in the order of their list."""
        return [todo for todo in self._todos if todo.state.lower() not in _DONE_STATUSES]

    def apply(self, events: Iterable[WorkEvent], index: int) -> None:
        """Take in what message ``index`` says."""
        for event in events:
            if isinstance(event, TodosReplaced | TodoChanged):
                self._apply_todo_event(event, index)
            elif isinstance(event, WorkStarted):
                self._start(event, index)
            elif isinstance(event, WorkContinues):
                self._continue(event, index)
            else:
                self._end(event)

    def add(self, item: OpenItem) -> None:
        """Add an item that no text tells of."""
        self._work[item.id] = item

    def remove(self, id_: str) -> None:
        """Remove the item with this id, if there is one."""
        self._work.pop(id_, None)

    def _start(self, event: WorkStarted, index: int) -> None:
        known = self._work.get(event.id)
        if known is not None:
            # Told again: its beginning stays, and what was not known then is filled in.
            name = known.name or event.name
            self._work[event.id] = replace(known, name=name, state=event.state, last_told=index)
            return
        self._work[event.id] = OpenItem(
            event.kind,
            event.id,
            event.name,
            event.state,
            index,
            index,
            event.aliases,
        )

    def _continue(self, event: WorkContinues, index: int) -> None:
        known = self._work.get(event.id)
        if known is not None:
            self._work[event.id] = replace(known, state=event.state, last_told=index)

    def _end(self, event: WorkEnded | NamedWorkEnded) -> None:
        if isinstance(event, WorkEnded) and not event.is_prefix:
            self.remove(event.id)
            return
        for item in self.work:
            if isinstance(event, WorkEnded):
                has_ended = item.id.startswith(event.id)
            else:
                has_ended = any(_is_named_in(name, event.text) for name in (item.id, *item.aliases))
            if has_ended:
                self.remove(item.id)

    def _apply_todo_event(self, event: TodosReplaced | TodoChanged, index: int) -> None:
        if isinstance(event, TodosReplaced):
            self._todos = [_make_todo(item, index) for item in event.items]
            return
        change = event.item
        for position, todo in enumerate(self._todos):
            if todo.id == change.id:
                name = change.text or todo.name
                state = change.status or todo.state
                self._todos[position] = replace(todo, name=name, state=state, last_told=index)
                return
        if change.text:
            self._todos.append(_make_todo(change, index))


def _make_todo(item: TodoItem, index: int) -> OpenItem:
    return OpenItem("to-do", item.id, item.text, item.status, index, index)


def _is_named_in(id_: str, text: str) -> bool:
    """Return whether ``id_`` stands in ``text`` as a whole word."""
    position = text.find(id_)
    while position >= 0:
        before = text[position - 1 : position]
        after = text[position + len(id_) : position + len(id_) + 1]
        if not _is_id_char(before) and not _is_id_char(after):
            return True
        position = text.find(id_, position + 1)
    return False


def _is_id_char(char: str) -> bool:
    return bool(char) and (char.isalnum() or char in "_-")
