"""What of a session can be read back: the texts that were stored away, and everything that was ever said.

Only what the session's own log names is found. A blob of another session is refused in the very words for one that
does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from msgspec import Struct

from holdfast.errors import StoreCorrupt, UnknownId
from holdfast.messages.message import Message, part_text, placeholder, result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.cutting import fingerprint
from holdfast.messages.text.scan import Extent, Read, extent, reader
from holdfast.planning.settings import HANDLE
from holdfast.state.entries import BranchSummary, Compaction, Decision, Entry, Said
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import NAMERS, named_blobs

SAYING = ("message", "branch_summary", "compaction")
"""Kinds of entries that have a text."""
SHORTEST = 4
"""[H] Characters of the beginning of an entry's id that mean it; fewer may be anything."""
LISTED = 5
"""Handles that a message about an unknown one lists."""
KNOWN_EXTENTS = 64
"""Texts whose extent is remembered, so that a long one is walked once and not at every page."""
_HANDLE = re.compile(r"[0-9a-f]{6,64}\Z")
_SUFFIX = re.compile(r"\.(?:txt|json)\Z")
_extents: dict[str, Extent] = {}
"""By the hash of their text, so they are true for ever, in any store."""


class Source(NamedTuple):
    """A text that can be read back, what it is called, and how long it is."""

    id: str
    read: Read
    extent: Extent


class Spill(Struct, frozen=True):
    """A text that was stored away and what is known of it; ``at`` is ms since 1970."""

    id: str
    """What the model calls it."""
    hash: str
    size: int
    """Bytes."""
    tool: str
    """The tool that gave it, or nothing where a person said it."""
    at: int | None
    entry: str
    """The entry of the log that names it."""
    is_here: bool = True
    """Whether the blob is still in the store."""


def source(store: SessionStore, key: str, name: str) -> Source:
    """Return the text that ``name`` stands for in session ``key``: a stored text, else what an entry says.

    ``name`` is the beginning of a blob's hash (six digits or more, ``.txt`` or ``.json`` may follow) or of an entry's
    id. Raises ``UnknownId`` with the newest handles that there are.
    """
    wanted = _SUFFIX.sub("", name.strip())
    named = named_blobs(_naming(store, key))
    if _HANDLE.match(wanted.lower()):
        found = [hash_ for hash_ in named if hash_.startswith(wanted.lower())]
        if len(found) == 1:
            return _blob(store, key, found[0])
        if found:
            raise UnknownId(
                f"{wanted[:40]!r} begins {len(found)} handles: {', '.join(found[:LISTED])}; give one of them"
            )
    entries = _entries(store, key, wanted)
    if len(entries) > 1:
        ids = ", ".join(entry.id[:40] for entry in entries)
        raise UnknownId(f"{name[:40]!r} begins the ids of several messages: {ids}; give more of the one you mean")
    if not entries:
        raise UnknownId(f"nothing to read back is called {name[:40]!r}; {_newest(list(named))}")
    read = reader(entry_text(entries[0]))
    return Source(entries[0].id, read, extent(read))


def reachable(store: SessionStore, key: str) -> list[Spill]:
    """Return every text of session ``key`` that was stored away, the newest first."""
    naming = {entry.id: entry for entry in _naming(store, key)}
    named = named_blobs(naming.values())
    tools = _tools(store, key, naming.values(), named)
    spills = [_spill(store, hash_, naming[id_], tools.get(hash_, "")) for hash_, id_ in named.items()]
    return spills[::-1]


def entry_text(entry: Entry) -> str:
    """Return all that an entry says; raises ``UnknownId`` for one that says nothing."""
    body = entry.body
    if isinstance(body, Said | BranchSummary):
        return message_text(body.slot.message)
    if isinstance(body, Compaction) and body.summary is not None:
        return message_text(body.summary)
    kind = str(body.__struct_config__.tag).replace("_", " ")
    raise UnknownId(f"entry {entry.id[:40]!r} is a {kind}, which has no text; give the id of a message")


def message_text(message: Message) -> str:
    """Return all that a message says: the words alone where it has one part, else every part with a heading."""
    if len(message.parts) == 1 and isinstance(message.parts[0], Text | ToolResult):
        return _words(message.parts[0])
    return "\n\n".join(_headed(part) for part in message.parts)


def _headed(part: Part) -> str:
    words = _words(part)
    match part:
        case Thinking():
            return f"[thinking]\n{words}"
        case ToolCall():
            return f"[call of {part.name}, {part.id}]\n{words}"
        case ToolResult():
            failed = ", an error" if part.is_error else ""
            return f"[result of {part.name or 'call'} {part.call_id}{failed}]\n{words}"
        case _:
            return words


def _words(part: Part) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case ToolCall():
            return part.arguments
        case ToolResult():
            others = [placeholder(one) for one in part.content if not isinstance(one, Text)]
            return "\n".join([result_text(part), *others] if others else [result_text(part)])
        case Media() | Opaque():
            return placeholder(part)


# -- finding -----------------------------------------------------------------------------------------------------------


def _naming(store: SessionStore, key: str) -> list[Entry]:
    """Return the entries that can name a blob, the oldest first."""
    found = [entry for kind in NAMERS for entry in store.entries(key, kind)]
    return sorted(found, key=lambda entry: entry.seq)


def _blob(store: SessionStore, key: str, hash_: str) -> Source:
    read: Read = partial(store.blobs.text, hash_)
    try:
        read(0, 1)  # the store looks whether the text is the one that it had
    except (UnknownId, StoreCorrupt) as error:
        read = reader(_said(store, key, hash_, error))
    return Source(hash_[:HANDLE], read, _extent(hash_, read))


def _extent(hash_: str, read: Read) -> Extent:
    held = _extents.get(hash_)
    if held is None:
        held = extent(read)
        if len(_extents) >= KNOWN_EXTENTS:
            _extents.clear()
        _extents[hash_] = held
    return held


def _said(store: SessionStore, key: str, hash_: str, error: Exception) -> str:
    """Return the text of a blob that is gone or damaged, from the message that said it; raises ``error`` without one.

    A spilled text still stands in its own entry, as it came; one that was capped does not.
    """
    for entry in store.entries(key, "message"):
        for part in entry.body.slot.message.parts if isinstance(entry.body, Said) else ():
            if (text := part_text(part)) and fingerprint(text) == hash_:
                return text
    raise error


def _entries(store: SessionStore, key: str, name: str) -> list[Entry]:
    """Return the entry that ``name`` means; where several begin with it, those that say something."""
    if not name:
        return []
    try:
        found = store.entry(key, name)
        return [found] if found.id == name or len(name) >= SHORTEST else []
    except UnknownId:
        said = (entry for kind in SAYING for entry in store.entries(key, kind) if entry.id.startswith(name))
        return list(islice(said, LISTED)) if len(name) >= SHORTEST else []


def _newest(hashes: list[str]) -> str:
    """Return the newest handles in words."""
    if not hashes:
        return "nothing of this session was stored away; search its history, or give the id of a message"
    listed = ", ".join(hash_[:HANDLE] for hash_ in reversed(hashes[-LISTED:]))
    return f"the newest of {len(hashes):,} are {listed}: give one of them, or no id for the list"


def _spill(store: SessionStore, hash_: str, entry: Entry, tool: str) -> Spill:
    try:
        size, is_here = store.blobs.size(hash_), True
    except UnknownId:
        size, is_here = 0, False
    return Spill(hash_[:HANDLE], hash_, size, tool, entry.at, entry.id, is_here)


def _tools(store: SessionStore, key: str, naming: Iterable[Entry], named: dict[str, str]) -> dict[str, str]:
    """Return the tool behind each blob; the calls are looked at only where a result does not say."""
    edits = [edit for entry in naming if isinstance(entry.body, Decision | Compaction) for edit in entry.body.edits]
    results = {edit.blob: put for edit in edits for put in edit.put if isinstance(put, ToolResult)}
    if all(hash_ in results and results[hash_].name for hash_ in named):
        return {hash_: result.name for hash_, result in results.items()}
    said = store.entries(key, "message")
    bodies = (entry.body for entry in said)
    names = {call.id: call.name for body in bodies if isinstance(body, Said) for call in body.slot.message.calls}
    notes: dict[str, list[str]] = {}
    for hash_, id_ in named.items():
        notes.setdefault(id_, []).append(hash_)
    results |= dict(_capped(said, notes))
    return {hash_: result.name or names.get(result.call_id, "") for hash_, result in results.items()}


def _capped(said: Iterable[Entry], notes: dict[str, list[str]]) -> Iterator[tuple[str, ToolResult]]:
    """Yield the blobs of ``notes`` with the results, in the messages behind those, that have their handles in them."""
    for entry in said:
        hashes = notes.get(entry.parent or "", ())
        for result in entry.body.slot.message.results if hashes and isinstance(entry.body, Said) else ():
            text = result_text(result)
            yield from ((hash_, result) for hash_ in hashes if hash_[:HANDLE] in text)
