"""Find the texts of a session that can be read back: spilled texts, and the content of every entry.

Only texts that the session's own log names are found. A blob of another session is refused with the same message as one
that does not exist, so that nobody can find out what other sessions hold.
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
# A model that shortens an id keeps more; with fewer characters, a word of its own could match. Chosen by judgement.
MIN_ID_PREFIX = 4
"""Characters from which the beginning of an entry's id is accepted for it."""
MAX_LISTED_HANDLES = 5
"""Ids listed in the error about an unknown or ambiguous one."""
# An extent is a few numbers, so the bound matters only to a proxy that runs for weeks. Chosen by judgement.
MAX_CACHED_EXTENTS = 64
"""Texts whose extent is remembered, so that a long text is measured once and not for each of its pages."""
_HANDLE_PATTERN = re.compile(r"[0-9a-f]{6,64}\Z")
_SUFFIX_PATTERN = re.compile(r"\.(?:txt|json)\Z")
_extent_cache: dict[str, TextExtent] = {}
"""Extents by the hash of the text: they never become wrong, whatever store it is in."""


class TextSource(NamedTuple):
    """A text that can be read back, with its id and its extent."""

    id: str
    read_text: TextReader
    extent: TextExtent


class SpilledText(Struct, frozen=True):
    """A text that was stored as a blob."""

    id: str
    """The short id that the model uses."""
    hash: str
    size: int
    """In bytes; 0 if the blob is no longer in the store."""
    tool: str
    """The tool whose result it is; empty for a user's text."""
    at: int | None
    """Milliseconds since 1970 when it was stored."""
    entry: str
    """Id of the entry that names it."""
    is_stored: bool = True
    """Whether the blob is still in the store."""


def find_text_source(store: SessionStore, key: str, name: str) -> TextSource:
    """Find the text called ``name`` in session ``key``: a spilled text, or else an entry's content.

    ``name`` is the beginning of a blob's hash (at least six digits, and ``.txt`` or ``.json`` may follow), or of an
    entry's id. Raises ``UnknownId``, listing the newest ids, if it is unknown or ambiguous.
    """
    handle = _SUFFIX_PATTERN.sub("", name.strip())
    blob_entry_ids = collect_named_blobs(_list_blob_entries(store, key))
    if _HANDLE_PATTERN.match(handle.lower()):
        matches = []
        for hash_ in blob_entry_ids:
            if hash_.startswith(handle.lower()):
                matches.append(hash_)
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
        newest_handles = _describe_newest_handles(list(blob_entry_ids))
        raise UnknownId(f"no text of this session is called {name[:40]!r}; {newest_handles}")
    read_text = make_text_reader(get_entry_text(entries[0]))
    return TextSource(entries[0].id, read_text, measure_extent(read_text))


def list_spilled_texts(store: SessionStore, key: str) -> list[SpilledText]:
    """Return all spilled texts of session ``key``, newest first."""
    entries_by_id = {entry.id: entry for entry in _list_blob_entries(store, key)}
    blob_entry_ids = collect_named_blobs(entries_by_id.values())
    tool_names = _find_tool_names(store, key, entries_by_id.values(), blob_entry_ids)
    spilled_texts = []
    for hash_, entry_id in blob_entry_ids.items():
        entry = entries_by_id[entry_id]
        tool_name = tool_names.get(hash_, "")
        spilled_texts.append(_make_spilled_text(store, hash_, entry, tool_name))
    spilled_texts.reverse()
    return spilled_texts


def get_entry_text(entry: Entry) -> str:
    """Return the whole content of an entry as text. Raises ``UnknownId`` for an entry without content."""
    body = entry.body
    if isinstance(body, MessageEntry | BranchSummaryEntry):
        return get_message_text(body.sized_message.message)
    if isinstance(body, CompactionEntry) and body.summary is not None:
        return get_message_text(body.summary)
    kind = str(body.__struct_config__.tag).replace("_", " ")
    raise UnknownId(f"entry {entry.id[:40]!r} is a {kind}, which has no text; give the id of a message")


def get_message_text(message: Message) -> str:
    """Return the whole content of a message: its text alone if it has one part, else each part with a heading."""
    if len(message.parts) == 1 and isinstance(message.parts[0], Text | ToolResult):
        return _get_part_text(message.parts[0])
    return "\n\n".join(_format_part_with_heading(part) for part in message.parts)


def _format_part_with_heading(part: Part) -> str:
    text = _get_part_text(part)
    match part:
        case Thinking():
            return f"[thinking]\n{text}"
        case ToolCall():
            return f"[call of {part.name}, {part.id}]\n{text}"
        case ToolResult():
            error_mark = ", an error" if part.is_error else ""
            return f"[result of {part.name or 'call'} {part.call_id}{error_mark}]\n{text}"
        case _:
            return text


def _get_part_text(part: Part) -> str:
    match part:
        case Text() | Thinking():
            return part.text
        case ToolCall():
            return part.arguments
        case ToolResult():
            placeholders = []
            for item in part.content:
                if not isinstance(item, Text):
                    placeholders.append(format_part_placeholder(item))
            return "\n".join([get_result_text(part), *placeholders])
        case Media() | Opaque():
            return format_part_placeholder(part)


# -- finding -----------------------------------------------------------------------------------------------------------


def _list_blob_entries(store: SessionStore, key: str) -> list[Entry]:
    """Return the entries that can name a blob, oldest first."""
    entries: list[Entry] = []
    for kind in BLOB_NAMING_KINDS:
        entries += store.read_entries(key, kind)
    return sorted(entries, key=lambda entry: entry.seq)


def _open_blob_source(store: SessionStore, key: str, hash_: str) -> TextSource:
    read_text: TextReader = partial(store.blobs.read_text, hash_)
    try:
        read_text(0, 1)  # makes the store verify the blob
    except (UnknownId, StoreCorrupt) as error:
        read_text = make_text_reader(_recover_blob_text(store, key, hash_, error))
    return TextSource(
        hash_[:HANDLE_CHARS],
        read_text,
        _get_cached_extent(hash_, read_text),
    )


def _get_cached_extent(hash_: str, read_text: TextReader) -> TextExtent:
    known_extent = _extent_cache.get(hash_)
    if known_extent is None:
        known_extent = measure_extent(read_text)
        if len(_extent_cache) >= MAX_CACHED_EXTENTS:
            _extent_cache.clear()
        _extent_cache[hash_] = known_extent
    return known_extent


def _recover_blob_text(
    store: SessionStore,
    key: str,
    hash_: str,
    error: Exception,
) -> str:
    """Return the text of a missing or damaged blob from the message that it was taken from; else raise ``error``.

    The entry of a spilled text still has all of it. A text that was capped when it was appended is in its blob only.
    """
    for entry in store.read_entries(key, "message"):
        if not isinstance(entry.body, MessageEntry):
            continue
        for part in entry.body.sized_message.message.parts:
            text = get_part_text(part)
            if text and hash_text(text) == hash_:
                return text
    raise error


def _find_entries_by_id(store: SessionStore, key: str, name: str) -> list[Entry]:
    """Return the entry whose id is or begins with ``name``; if several do, those among them that have content."""
    if not name:
        return []
    is_long_enough = len(name) >= MIN_ID_PREFIX
    try:
        entry = store.get_entry(key, name)
    except UnknownId:
        # None, or several: list those that can be read.
        if is_long_enough:
            return list(islice(_iter_text_entries(store, key, name), MAX_LISTED_HANDLES))
        return []
    return [entry] if entry.id == name or is_long_enough else []


def _iter_text_entries(store: SessionStore, key: str, id_prefix: str) -> Iterator[Entry]:
    for kind in TEXT_ENTRY_KINDS:
        for entry in store.read_entries(key, kind):
            if entry.id.startswith(id_prefix):
                yield entry


def _describe_newest_handles(hashes: list[str]) -> str:
    """Describe the ids of the newest spilled texts, for an error about an unknown one."""
    if not hashes:
        return "this session has no stored texts; search its history, or give the id of a message"
    newest_hashes = reversed(hashes[-MAX_LISTED_HANDLES:])
    handles = ", ".join(hash_[:HANDLE_CHARS] for hash_ in newest_hashes)
    return f"the newest of {len(hashes):,} are {handles}: give one of them, or no id for the list"


def _make_spilled_text(
    store: SessionStore,
    hash_: str,
    entry: Entry,
    tool: str,
) -> SpilledText:
    try:
        size = store.blobs.get_size(hash_)
        is_stored = True
    except UnknownId:
        size = 0
        is_stored = False
    return SpilledText(
        hash_[:HANDLE_CHARS],
        hash_,
        size,
        tool,
        entry.time_ms,
        entry.id,
        is_stored,
    )


def _find_tool_names(
    store: SessionStore,
    key: str,
    blob_entries: Iterable[Entry],
    blob_entry_ids: dict[str, str],
) -> dict[str, str]:
    """Return the name of the tool for each blob hash; messages are read only if some result does not name its tool."""
    results = _collect_replaced_results(blob_entries)
    if all(hash_ in results and results[hash_].name for hash_ in blob_entry_ids):
        return {hash_: result.name for hash_, result in results.items()}

    message_entries = store.read_entries(key, "message")
    call_names: dict[str, str] = {}
    for entry in message_entries:
        if isinstance(entry.body, MessageEntry):
            for call in entry.body.sized_message.message.calls:
                call_names[call.id] = call.name
    hashes_by_entry_id: dict[str, list[str]] = {}
    for hash_, entry_id in blob_entry_ids.items():
        hashes_by_entry_id.setdefault(entry_id, []).append(hash_)
    results |= dict(_match_capped_results(message_entries, hashes_by_entry_id))
    tool_names: dict[str, str] = {}
    for hash_, result in results.items():
        tool_names[hash_] = result.name or call_names.get(result.call_id, "")
    return tool_names


def _collect_replaced_results(blob_entries: Iterable[Entry]) -> dict[str, ToolResult]:
    """Return the shortened result for each blob hash that an edit names."""
    results: dict[str, ToolResult] = {}
    for entry in blob_entries:
        if not isinstance(entry.body, DecisionEntry | CompactionEntry):
            continue
        for edit in entry.body.edits:
            for part in edit.replacement:
                if isinstance(part, ToolResult):
                    results[edit.blob_hash] = part
    return results


def _match_capped_results(
    message_entries: Iterable[Entry], hashes_by_entry_id: dict[str, list[str]]
) -> Iterator[tuple[str, ToolResult]]:
    """Yield each blob of a capped text with its result.

    The blob is named by a note, the result is in the message after that note and shows the blob's id.
    """
    for entry in message_entries:
        hashes = hashes_by_entry_id.get(entry.parent or "", ())
        if not hashes or not isinstance(entry.body, MessageEntry):
            continue
        for result in entry.body.sized_message.message.results:
            text = get_result_text(result)
            for hash_ in hashes:
                if hash_[:HANDLE_CHARS] in text:
                    yield hash_, result
