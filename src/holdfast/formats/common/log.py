"""The recording under construction: readers add entries, and ids, parents and message counts are kept consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.formats.base import STALE_USAGE_BASIS, UNFINISHED_STOPS, Recording, RecordingProblem
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    Entry,
    EntryBody,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    Usage,
)
from holdfast.state.lazy_entries import LazyBody, LazyEntry, load_entries_lazily


class CallMetadata(Struct, frozen=True):
    """The recorded facts of a model call beside its message."""

    model: str = ""
    usage: Usage = Usage()
    stop: str = ""
    usage_line: int = 0
    """Number of the line that reported the usage, 0 if it was the message's own."""
    has_stale_usage: bool = False
    """Whether the usage belongs to a request that showed other messages (``STALE_USAGE_BASIS``)."""


class RecordingBuilder:
    """Collects the entries of a recording.

    An entry keeps the tool's own id where it can. If its parent depends on a *later* line of the file, a digest of
    the parent is added to the id: a growing file that is imported again must never give one id to two different
    entries.
    """

    def __init__(self) -> None:
        self.entries: list[Entry | LazyEntry] = []
        self.message_counts: dict[str | None, int] = {None: 0}
        """Number of messages from the root to each entry, its own included."""
        self.skipped: Counter[str] = Counter()
        self.problems: list[RecordingProblem] = []
        self._id_uses: dict[str, int] = {}
        """For an id that was taken, how many entries wanted it."""
        self._last_lines: dict[str | None, int] = {None: 0}
        """For each entry, the last line that it or one of its ancestors was read from."""

    def add_entry(
        self,
        id_: str,
        parent: str | None,
        body: EntryBody | LazyBody,
        at: int | None = None,
        line: int = 0,
        last_line: int = 0,
    ) -> str:
        """Append an entry read from lines ``line`` to ``last_line``, and return the id that it got."""
        parent_line = self._last_lines[parent]
        wanted_id = id_
        # The parent was completed by a line after this one (Claude Code's parallel results, Codex's late usage).
        if parent_line > line:
            wanted_id = f"{id_}+{make_short_digest(parent or '')}"
        entry_id = self._make_unique_id(wanted_id or f"line-{line}")
        seq = len(self.entries) + 1
        body_type: type
        if isinstance(body, LazyBody):
            body_type = body.body_type
            read_body = body.read_body
            self.entries.append(LazyEntry(entry_id, parent, body.body_type, lambda _id: read_body(), seq, at))
        else:
            body_type = type(body)
            self.entries.append(Entry(entry_id, parent, body, seq, at))
        is_message = body_type in (MessageEntry, BranchSummaryEntry)
        self.message_counts[entry_id] = self.message_counts[parent] + is_message
        self._last_lines[entry_id] = max(parent_line, line, last_line)
        return entry_id

    def _make_unique_id(self, wanted_id: str) -> str:
        """Return ``wanted_id``, or the id with a number if it is taken."""
        unique_id = wanted_id
        while unique_id in self.message_counts:
            # Counted for each id and not from 2 on: a file that repeats one id a million times stays linear.
            self._id_uses[wanted_id] = self._id_uses.get(wanted_id, 1) + 1
            unique_id = f"{wanted_id}~{self._id_uses[wanted_id]}"
        return unique_id

    def add_answer(
        self,
        id_: str,
        parent: str | None,
        message_body: MessageEntry | LazyBody,
        call: CallMetadata,
        at: int | None,
        line: int = 0,
        last: int = 0,
    ) -> str:
        """Append the three entries of a model call, and return the id of the last.

        An answer that no model gave (no model named, and unfinished) gets no request entry.
        """
        if call.model or call.stop not in UNFINISHED_STOPS:
            request = RequestEntry(prefix_digest="", message_count=self.message_counts[parent], model=call.model)
            parent = self.add_entry(f"{id_}+request", parent, request, None, line)
        message_id = self.add_entry(id_, parent, message_body, at, line, last)
        # Usage on a later line gets another id: the file may have been imported before that line was written.
        suffix = "usage" if call.usage_line else "answer"
        prefix_digest = STALE_USAGE_BASIS if call.has_stale_usage else ""
        answer = AnswerEntry(prefix_digest, call.usage, call.stop)
        return self.add_entry(
            f"{message_id}+{suffix}",
            message_id,
            answer,
            at,
            max(line, last),
            call.usage_line,
        )

    def add_damaged_line(self, number: int, raw: bytes, reason: str, parent: str | None) -> None:
        """Keep a line that could not be read as a note after ``parent``, and report it."""
        self.report_problem(number, reason)
        # The id is made of content and place: the same damage found again is one note, other damage at that line is
        # another.
        parent_bytes = (parent or "").encode("utf-8", "surrogatepass")
        digest = blake2b(raw + parent_bytes, digest_size=4).hexdigest()
        note = NoteEntry(reason, raw, {"line": number})
        self.add_entry(f"line-{number}-{digest}", parent, note, None, number)

    def report_problem(self, line: int, reason: str) -> None:
        """Record a problem of ``line``."""
        self.problems.append(RecordingProblem(line, reason))

    def finish_recording(self, recording: Recording) -> Recording:
        """Return ``recording`` with the collected entries, counts and problems."""
        problems = tuple(sorted(self.problems, key=lambda problem: problem.line))
        return replace(
            recording,
            entries=load_entries_lazily(self.entries),
            skipped_counts=dict(self.skipped),
            problems=problems,
        )


def make_short_digest(text: str) -> str:
    """Return eight hexadecimal digits of a digest of ``text``."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def make_sized_message(message: Message, api: str, raw: bytes | Raw | None) -> SizedMessage:
    """Return ``message`` with its estimated size, and with the bytes that it was read from."""
    sized_message = build_sized_message(message)
    wire = Raw(raw) if isinstance(raw, bytes) else raw
    return SizedMessage(sized_message.message, sized_message.tokens, sized_message.digest, api, wire)


def join_origin_lines(lines: Sequence[bytes]) -> Raw:
    """Return the lines that an entry came from as one JSON value: the line itself, or an array of several."""
    if len(lines) == 1:
        return Raw(lines[0])
    return Raw(b"[" + b",".join(lines) + b"]")


def order_parents_first(parents: list[int]) -> tuple[list[int], list[int]]:
    """Return all indexes ordered so that each follows its parent, and the indexes at which a cycle was cut.

    ``parents[i]`` is the parent of ``i``, -1 for a root. A cycle is cut at its smallest index, whose link in
    ``parents`` becomes -1. Takes linear time and no recursion: files have a million lines in one chain.
    """
    unseen, on_trail, finished = 0, 1, 2
    state = [unseen] * len(parents)
    order: list[int] = []
    cycle_starts = []
    for start in range(len(parents)):
        trail = []
        index = start
        while index >= 0 and state[index] == unseen:
            state[index] = on_trail
            trail.append(index)
            index = parents[index]
        if index >= 0 and state[index] == on_trail:
            trail = _rotate_cycle(trail, trail.index(index))
            parents[trail[-1]] = -1
            cycle_starts.append(trail[-1])
        for trail_index in trail:
            state[trail_index] = finished
        order += trail[::-1]
    return order, cycle_starts


def _rotate_cycle(trail: list[int], start: int) -> list[int]:
    """Return ``trail``, children first, with the cycle from ``start`` on rotated so that its smallest index is last."""
    cycle = trail[start:]
    root = cycle.index(min(cycle))
    return trail[:start] + cycle[root + 1 :] + cycle[: root + 1]
