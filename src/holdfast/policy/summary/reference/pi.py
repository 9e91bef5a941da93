"""How pi tells a conversation to the writer of a summary, and the files that it lists behind one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.model.messages import Message, result_text
from holdfast.model.parts import Media, Opaque, Part, Text, ToolResult
from holdfast.policy.measures import utf16
from holdfast.policy.summary.rendering import Style, rendered
from holdfast.view.references import arguments

RESULT_CHARS = 2_000
"""[P] Characters of a result, as JavaScript counts them."""
_STYLE = Style(results=0, arguments=0, tail=0.0, failures=False, guarded=False)
_READS, _CHANGES = frozenset({"read"}), frozenset({"write", "edit"})
"""[P] Tools whose calls name a file by ``path``."""


# -- the conversation --------------------------------------------------------------------------------------------------


def serialized(messages: Iterable[Message]) -> str:
    """Return ``messages`` as pi tells them: no media, no thinking, each result cut behind its first characters."""
    return rendered(map(_shown, messages), _STYLE)


def _shown(message: Message) -> Message:
    return Message(message.role, tuple([_part(part) for part in message.parts if not isinstance(part, Media | Opaque)]))


def _part(part: Part) -> Part:
    if not isinstance(part, ToolResult):
        return part
    return ToolResult(part.call_id, part.name, (Text(_cut(result_text(part))),), part.is_error)


def _cut(text: str) -> str:
    """Return the first characters of ``text`` and how many more there were; a pair of surrogates stays whole."""
    size = utf16(text)
    if size <= RESULT_CHARS:
        return text
    units = text.encode("utf-16-le", "surrogatepass")[: 2 * RESULT_CHARS]
    is_torn = 0xD8 <= units[-1] <= 0xDB
    held = (units[:-2] if is_torn else units).decode("utf-16-le", "surrogatepass")
    return f"{held}\n\n[... {size - RESULT_CHARS + is_torn} more characters truncated]"


# -- files -------------------------------------------------------------------------------------------------------------


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
