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
from holdfast.messages.message import Message, format_part_placeholder, get_part_text, get_result_text
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.text.scan import TextExtent, TextReader, make_text_reader, measure_extent
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.state.entries import BranchSummaryEntry, CompactionEntry, DecisionEntry, Entry, MessageEntry
from holdfast.store.base import SessionStore
from holdfast.store.blobs.blob_names import BLOB_NAMING_KINDS, collect_named_blobs

TEXT_ENTRY_KINDS = ("message", "branch_summary", "compaction")
"""Kinds of entries that have a text."""
MIN_ID_PREFIX = 4
"""[H] Characters of the beginning of an entry's id that mean it; fewer may be anything."""
MAX_LISTED_HANDLES = 5
"""Handles that a message about an unknown one lists."""
MAX_CACHED_EXTENTS = 64
"""Texts whose extent is remembered, so that a long one is walked once and not at every page."""
_HANDLE_PATTERN = re.compile(r"[0-9a-f]{6,64}\Z")
_SUFFIX_PATTERN = re.compile(r"\.(?:txt|json)\Z")
_extent_cache: dict[str, TextExtent] = {}
"""By the hash of their text, so they are true for ever, in any store."""


class TextSource(NamedTuple):
    """A text that can be read back, what it is called, and how long it is."""

    id: str
    read_text: TextReader
    extent: TextExtent


class SpilledText(Struct, frozen=True):
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
    is_stored: bool = True
    """Whether the blob is still in the store."""


def find_text_source(store: SessionStore, key: str, name: str) -> TextSource:
    """Return the text that ``name`` stands for in session ``key``: a stored text, else what an entry says.

    ``name`` is the beginning of a blob's hash (six digits or more, ``.txt`` or ``.json`` may follow) or of an entry's
    id. Raises ``UnknownId`` with the newest handles that there are.
    """
    handle = _SUFFIX_PATTERN.sub("", name.strip())
    blob_entry_ids = collect_named_blobs(_list_blob_entries(store, key))
    if _HANDLE_PATTERN.match(handle.lower()):
        matches = [hash_ for hash_ in blob_entry_ids if hash_.startswith(handle.lower())]
        if len(matches) == 1:
            return _open_blob_source(store, key, matches[0])
        if matches:
            raise UnknownId(
                f"{handle[:40]!r} begins {len(matches)} handles: {', '.join(matches[:MAX_LISTED_HANDLES])}; give "
                "one of them"
            )
    entries = _find_entries_by_id(store, key, handle)
    if len(entries) > 1:
        ids = ", ".join(entry.id[:40] for entry in entries)
        raise UnknownId(f"{name[:40]!r} begins the ids of several messages: {ids}; give more of the one you mean")
    if not entries:
        raise UnknownId(
            f"nothing to read back is called {name[:40]!r}; {_describe_newest_handles(list(blob_entry_ids))}"
        )
    read_text = make_text_reader(get_entry_text(entries[0]))
    return TextSource(entries[0].id, read_text, measure_extent(read_text))


def list_spilled_texts(store: SessionStore, key: str) -> list[SpilledText]:
    """Return every text of session ``key`` that was stored away, the newest first."""
    naming = {entry.id: entry for entry in _list_blob_entries(store, key)}
    blob_entry_ids = collect_named_blobs(naming.values())
    tools = _find_tool_names(store, key, naming.values(), blob_entry_ids)
    spills = [
        _make_spilled_text(store, hash_, naming[id_], tools.get(hash_, "")) for hash_, id_ in blob_entry_ids.items()
    ]
    return spills[::-1]


def get_entry_text(entry: Entry) -> str:
    """Return all that an entry says; raises ``UnknownId`` for one that says nothing."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return get_message_text(body.sized_message.message)
    if isinstance(body, CompactionEntry) and body.summary is not None:
        return get_message_text(body.summary)
    kind = str(body.__struct_config__.tag).replace("_", " ")
    raise UnknownId(f"entry {entry.id[:40]!r} is a {kind}, which has no text; give the id of a message")


def get_message_text(message: Message) -> str:
    """Return all that a message says: the words alone where it has one part, else every part with a heading."""
    if len(message.parts) == 1 and isinstance(message.parts[0], Text | ToolResult):
        return _get_part_text(message.parts[0])
    return "\n\n".join(_format_part_with_heading(part) for part in message.parts)


def _format_part_with_heading(part: Part) -> str:
    words = _get_part_text(part)
    match part:
        case Thinking():
            return f"[thinking]\n{words}"
        case ToolCall():
            return f"[call of {part.name}, {part.id}]\n{words}"
        case ToolResult():
            error_mark = ", an error" if part.is_error else ""
            return f"[result of {part.name or 'call'} {part.call_id}{error_mark}]\n{words}"
        case _:
            return words


def _get_part_text(part: Part) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case ToolCall():
            return part.arguments
        case ToolResult():
            placeholders = [format_part_placeholder(item) for item in part.content if not isinstance(item, Text)]
            return "\n".join([get_result_text(part), *placeholders] if placeholders else [get_result_text(part)])
        case Media() | Opaque():
            return format_part_placeholder(part)


# -- finding -----------------------------------------------------------------------------------------------------------


def _list_blob_entries(store: SessionStore, key: str) -> list[Entry]:
    """Return the entries that can name a blob, the oldest first."""
    entries = [entry for kind in BLOB_NAMING_KINDS for entry in store.read_entries(key, kind)]
    return sorted(entries, key=lambda entry: entry.seq)


def _open_blob_source(store: SessionStore, key: str, hash_: str) -> TextSource:
    read_text: TextReader = partial(store.blobs.read_text, hash_)
    try:
        read_text(0, 1)  # the store looks whether the text is the one that it had
    except (UnknownId, StoreCorrupt) as error:
        read_text = make_text_reader(_recover_blob_text(store, key, hash_, error))
    return TextSource(hash_[:HANDLE_CHARS], read_text, _get_cached_extent(hash_, read_text))


def _get_cached_extent(hash_: str, read_text: TextReader) -> TextExtent:
    known_extent = _extent_cache.get(hash_)
    if known_extent is None:
        known_extent = measure_extent(read_text)
        if len(_extent_cache) >= MAX_CACHED_EXTENTS:
            _extent_cache.clear()
        _extent_cache[hash_] = known_extent
    return known_extent


def _recover_blob_text(store: SessionStore, key: str, hash_: str, error: Exception) -> str:
    """Return the text of a blob that is gone or damaged, from the message that said it; raises ``error`` without one.

    A spilled text still stands in its own entry, as it came; one that was capped does not.
    """
    for entry in store.read_entries(key, "message"):
        for part in entry.body.sized_message.message.parts if isinstance(entry.body, MessageEntry) else ():
            if (text := get_part_text(part)) and hash_text(text) == hash_:
                return text
    raise error


def _find_entries_by_id(store: SessionStore, key: str, name: str) -> list[Entry]:
    """Return the entry that ``name`` means; where several begin with it, those that say something."""
    if not name:
        return []
    try:
        exact_entry = store.get_entry(key, name)
        return [exact_entry] if exact_entry.id == name or len(name) >= MIN_ID_PREFIX else []
    except UnknownId:
        matches = (
            entry for kind in TEXT_ENTRY_KINDS for entry in store.read_entries(key, kind) if entry.id.startswith(name)
        )
        return list(islice(matches, MAX_LISTED_HANDLES)) if len(name) >= MIN_ID_PREFIX else []


def _describe_newest_handles(hashes: list[str]) -> str:
    """Return the newest handles in words."""
    if not hashes:
        return "nothing of this session was stored away; search its history, or give the id of a message"
    handles = ", ".join(hash_[:HANDLE_CHARS] for hash_ in reversed(hashes[-MAX_LISTED_HANDLES:]))
    return f"the newest of {len(hashes):,} are {handles}: give one of them, or no id for the list"


def _make_spilled_text(store: SessionStore, hash_: str, entry: Entry, tool: str) -> SpilledText:
    try:
        size, is_here = store.blobs.get_size(hash_), True
    except UnknownId:
        size, is_here = 0, False
    return SpilledText(hash_[:HANDLE_CHARS], hash_, size, tool, entry.time_ms, entry.id, is_here)


def _find_tool_names(
    store: SessionStore, key: str, naming: Iterable[Entry], blob_entry_ids: dict[str, str]
) -> dict[str, str]:
    """Return the tool behind each blob; the calls are looked at only where a result does not say."""
    edits = [
        edit for entry in naming if isinstance(entry.body, DecisionEntry | CompactionEntry) for edit in entry.body.edits
    ]
    results = {edit.blob_hash: part for edit in edits for part in edit.replacement if isinstance(part, ToolResult)}
    if all(hash_ in results and results[hash_].name for hash_ in blob_entry_ids):
        return {hash_: result.name for hash_, result in results.items()}
    message_entries = store.read_entries(key, "message")
    bodies = (entry.body for entry in message_entries)
    names = {
        call.id: call.name
        for body in bodies
        if isinstance(body, MessageEntry)
        for call in body.sized_message.message.calls
    }
    notes: dict[str, list[str]] = {}
    for hash_, id_ in blob_entry_ids.items():
        notes.setdefault(id_, []).append(hash_)
    results |= dict(_match_capped_results(message_entries, notes))
    return {hash_: result.name or names.get(result.call_id, "") for hash_, result in results.items()}


def _match_capped_results(entries: Iterable[Entry], notes: dict[str, list[str]]) -> Iterator[tuple[str, ToolResult]]:
    """Yield the blobs of ``notes`` with the results, in the messages behind those, that have their handles in them."""
    for entry in entries:
        hashes = notes.get(entry.parent or "", ())
        for result in (
            entry.body.sized_message.message.results if hashes and isinstance(entry.body, MessageEntry) else ()
        ):
            text = get_result_text(result)
            yield from ((hash_, result) for hash_ in hashes if hash_[:HANDLE_CHARS] in text)
