"""The files that pi lists behind a summary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.model.messages import Message
from holdfast.view.references import arguments

_READS, _CHANGES = frozenset({"read"}), frozenset({"write", "edit"})
"""[P] Tools whose calls name a file by ``path``."""


class Files(Struct, frozen=True):
    """Paths in order; one that was changed too is not among those that were read."""

    read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def tail(self) -> str:
        """The blocks that stand behind the summary; nothing for no files."""
        blocks = (("read-files", self.read), ("modified-files", self.changed))
        return "".join([f"\n\n<{name}>\n{_lines(paths)}\n</{name}>" for name, paths in blocks if paths])


def _lines(paths: Sequence[str]) -> str:
    return "\n".join(paths)


def carried(details: Mapping[str, Any], *, from_hook: bool = False) -> Files:
    """Return the files that the details of the summary before name; what a hook wrote is not believed."""
    if from_hook:
        return Files()
    lists = (details.get(name) for name in ("readFiles", "modifiedFiles"))
    read, changed = [
        [one for one in value if isinstance(one, str)] if isinstance(value, list) else [] for value in lists
    ]
    return _files(read, changed)


def files(messages: Iterable[Message], known: Files = Files()) -> Files:
    """Return the files that ``messages`` read and changed, and those ``known`` before."""
    read, changed = [*known.read], [*known.changed]
    for message in messages:
        for call in message.calls:
            given = arguments(call)
            path = given.get("path") if isinstance(given, dict) else None
            if isinstance(path, str) and path:
                read += [path] if call.name in _READS else []
                changed += [path] if call.name in _CHANGES else []
    return _files(read, changed)


def _files(read: Iterable[str], changed: Iterable[str]) -> Files:
    edited = set(changed)
    return Files(tuple(sorted(set(read) - edited)), tuple(sorted(edited)))
