"""A session that is read again: which of its entries are in the log already, whatever they are called there.

A file that was exported says what the log says, but not in the same places: lines that are no part of the conversation
are gone, so that ids made of line numbers are others, results stand in another order, links lead elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from holdfast.formats.base import Recording
from holdfast.formats.common.log import short
from holdfast.formats.reduced import QUOTES
from holdfast.messages.size.tokens import measure
from holdfast.state.entries import Answer, BranchSummary, Compaction, Entry, Note, Request, Said
from holdfast.state.lazy_entries import LazyEntry, entries_of, headers_of, kind_of, load

_NUMBERED = "line-"
"""How ids begin that readers made of a line's number: in another file they mean nothing."""


def again(recording: Recording, there: Sequence[Entry]) -> Recording:
    """Return of ``recording`` what the log ``there`` has not, hung on what it has.

    An entry is in the log if one that says the same follows the same words there.
    """
    headers = headers_of(recording.entries)
    new, leaf = list(headers), recording.leaf
    if there:
        log = _Log(there, {entry.id for entry in headers})
        new = [one for entry in headers if (one := log.new(entry)) is not None]
        leaf = leaf if leaf is None else log.names.get(leaf, leaf)
    parents = {entry.parent for entry in new}
    kept = [entry for entry in new if entry.id in parents or not _is_quote(entry)]
    return replace(recording, entries=entries_of(kept), leaf=leaf)


class _Log:
    """What is in the log, and what the entries of a new reading are called there."""

    def __init__(self, there: Sequence[Entry], read: set[str]) -> None:
        self.known = {entry.id: entry for entry in headers_of(there)}
        self.names: dict[str, str] = {}
        """For each entry that was read its id in the log."""
        self._words: dict[str | None, str | None] = {None: None}
        """For each entry the newest words up to it."""
        self._free: defaultdict[tuple[str | None, Hashable], dict[str, None]] = defaultdict(dict)
        """By the words before them and what they say: entries that nothing read is yet."""
        self._says = {entry.id: said(entry) for entry in there}
        for entry in sorted(self.known.values(), key=lambda entry: entry.id in read):  # its own name comes last
            self._free[self._before(entry), self._says[entry.id]][entry.id] = None

    def _before(self, entry: Entry | LazyEntry) -> str | None:
        """Return the newest words above an entry of the log."""
        trail, at = [], entry.parent
        while at not in self._words:
            trail.append(at)
            at = self.known[at].parent if at in self.known else None
        words = self._words[at]
        for passed in reversed(trail):
            one = self.known.get(passed or "")
            words = passed if one is not None and _is_words(one) else words
            self._words[passed] = words
        return words

    def new(self, header: Entry | LazyEntry) -> Entry | LazyEntry | None:
        """Return an entry behind what the log has; nothing if it is there."""
        entry = load(header)
        parent = self.names.get(entry.parent or "", entry.parent)
        before = self._words.get(parent, parent)
        found = self._found(entry, before)
        if found is not None:
            self.names[entry.id] = found
            return None
        name = self._free_name(entry, before)
        self.names[entry.id] = name
        self._words[name] = name if _is_words(entry) else before
        return replace(header, id=name, parent=parent)

    def _free_name(self, entry: Entry, before: str | None) -> str:
        """Return how ``entry`` is called in the log; one that says otherwise what the log has is a conflict there."""
        twin = self._says.get(entry.id)
        if twin is None or (_is_words(entry) and not entry.id.startswith(_NUMBERED) and twin != said(entry)):
            return entry.id
        return f"{entry.id}+{short(f'{before} {said(entry)!r}')}"

    def _found(self, entry: Entry, before: str | None) -> str | None:
        """Return the entry of the log that ``entry`` is, if there is one; it is no other one's any more."""
        twin = self.known.get(entry.id)
        says = said(entry)
        if twin is not None and says != self._says[entry.id] and self._before(twin) == before:
            says = self._says[entry.id] if _is_same(load(twin), entry) else says
        free = self._free[before, says]
        found = entry.id if entry.id in free else next(iter(free), None)
        if found is not None:
            del free[found]
        return found


def said(entry: Entry) -> Hashable:
    """Return what ``entry`` says, apart from times, from what a tool kept around it, and from what no tool writes."""
    body = entry.body
    if isinstance(body, Said | BranchSummary):
        return type(body), body.slot.message.role, body.slot.digest
    if isinstance(body, Compaction):
        return Compaction, body.keep, body.summary.text if body.summary is not None else ""
    if isinstance(body, Request):
        return Request, body.slots, body.model
    if isinstance(body, Answer):
        return Answer, body.usage.input, body.usage.output
    return type(body), blake2b(msgspec.json.encode(body)).digest()


def _is_words(entry: Entry | LazyEntry) -> bool:
    """Return whether the conversation consists of such as ``entry``; all else only tells about it."""
    return kind_of(entry) in (Said, BranchSummary, Compaction)


def _is_same(twin: Entry, entry: Entry) -> bool:
    """Return whether two entries of one name and place are the same though they say otherwise.

    So are notes of a tool's whose lines name other lines, and messages that another version measured: how one is read
    may change, and what was told of it then stays in the log.
    """
    one, other = twin.body, entry.body
    if isinstance(one, Note) and isinstance(other, Note):
        return one.reason == other.reason
    if not isinstance(one, Said | BranchSummary) or type(one) is not type(other):
        return False
    return measure(one.slot.message).digest == other.slot.digest


def _is_quote(entry: Entry | LazyEntry) -> bool:
    """Return whether ``entry`` keeps the lines of the entry behind it."""
    if kind_of(entry) is not Note:
        return False
    body = load(entry).body
    return isinstance(body, Note) and body.reason in QUOTES
