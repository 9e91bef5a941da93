"""Entries as a reader collects them: unique ids, parents that exist, slots counted from the root."""

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
    """What is recorded of a model call beside its words."""

    model: str = ""
    usage: Usage = Usage()
    stop: str = ""
    usage_line: int = 0
    """The line that told the usage."""
    has_stale_usage: bool = False
    """Whether the usage is of a request that showed other words (``STALE_USAGE_BASIS``)."""


class RecordingBuilder:
    """A tree in the making.

    An id is the tool's own. Where an entry stands behind something that a *later* line of the file completed, the
    parent's digest is added: a file that is read again after it has grown never gives one id to two things.
    """

    def __init__(self) -> None:
        self.entries: list[Entry | LazyEntry] = []
        self.message_counts: dict[str | None, int] = {None: 0}
        """Slots from the root to an entry, with its own."""
        self.skipped: Counter[str] = Counter()
        self.problems: list[RecordingProblem] = []
        self._id_uses: dict[str, int] = {}
        """How many entries wanted an id."""
        self._last_lines: dict[str | None, int] = {None: 0}
        """The last line that had a part in an entry or in what it hangs on."""

    def add_entry(
        self,
        id_: str,
        parent: str | None,
        body: EntryBody | LazyBody,
        at: int | None = None,
        line: int = 0,
        last_line: int = 0,
    ) -> str:
        """Append an entry read from lines ``line`` to ``last_line``; return the id it got."""
        parent_line = self._last_lines[parent]
        name = id_ if parent_line <= line else f"{id_}+{make_short_digest(parent or '')}"
        name = self._make_unique_id(name or f"line-{line}")
        seq = len(self.entries) + 1
        if isinstance(body, LazyBody):
            kind = body.body_type
            self.entries.append(LazyEntry(name, parent, kind, body.read_body, seq, at))
        else:
            kind = type(body)
            self.entries.append(Entry(name, parent, body, seq, at))
        self.message_counts[name] = self.message_counts[parent] + (kind in (MessageEntry, BranchSummaryEntry))
        self._last_lines[name] = max(parent_line, line, last_line)
        return name

    def _make_unique_id(self, name: str) -> str:
        """Return ``name``, or what it becomes because it is taken."""
        free = name
        while free in self.message_counts:
            self._id_uses[name] = self._id_uses.get(name, 1) + 1
            free = f"{name}~{self._id_uses[name]}"
        return free

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
        """Append the three entries of a model call; return the id of the last."""
        if call.model or call.stop not in UNFINISHED_STOPS:
            body = RequestEntry(prefix_digest="", message_count=self.message_counts[parent], model=call.model)
            parent = self.add_entry(f"{id_}+request", parent, body, None, line)
        name = self.add_entry(id_, parent, message_body, at, line, last)
        kind = "usage" if call.usage_line else "answer"
        answer = AnswerEntry(STALE_USAGE_BASIS if call.has_stale_usage else "", call.usage, call.stop)
        return self.add_entry(f"{name}+{kind}", name, answer, at, max(line, last), call.usage_line)

    def add_damaged_line(self, number: int, raw: bytes, reason: str, parent: str | None) -> None:
        """Keep a line that could not be read as a note behind ``parent``, and report it."""
        self.report_problem(number, reason)
        mark = blake2b(raw + (parent or "").encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        self.add_entry(f"line-{number}-{mark}", parent, NoteEntry(reason, raw, {"line": number}), None, number)

    def report_problem(self, line: int, reason: str) -> None:
        """Report something about ``line``."""
        self.problems.append(RecordingProblem(line, reason))

    def finish_recording(self, recording: Recording) -> Recording:
        """Return ``recording`` with what was collected."""
        problems = tuple(sorted(self.problems, key=lambda problem: problem.line))
        return replace(
            recording, entries=load_entries_lazily(self.entries), skipped_counts=dict(self.skipped), problems=problems
        )


def make_short_digest(text: str) -> str:
    """Return eight hexadecimal digits for ``text``."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def make_sized_message(message: Message, api: str, raw: bytes | Raw | None) -> SizedMessage:
    """Return ``message`` measured, with the bytes it came in."""
    sized_message = build_sized_message(message)
    wire = None if raw is None else raw if isinstance(raw, Raw) else Raw(raw)
    return SizedMessage(sized_message.message, sized_message.tokens, sized_message.digest, api, wire)


def join_origin_lines(lines: Sequence[bytes]) -> Raw:
    """Return the lines an entry came from as one JSON value: the line, or a list of them."""
    return Raw(lines[0]) if len(lines) == 1 else Raw(b"[" + b",".join(lines) + b"]")


def order_parents_first(parents: list[int]) -> tuple[list[int], list[int]]:
    """Return all indexes so that each stands behind its parent ``up[i]`` (-1: a root), and those cut loose.

    A cycle is cut at its smallest index, whose link in ``parents`` becomes -1. Linear time, no recursion.
    """
    state, order, cycle_starts = [0] * len(parents), [], []
    for start in range(len(parents)):
        trail, index = [], start
        while index >= 0 and not state[index]:
            state[index] = 1
            trail.append(index)
            index = parents[index]
        if index >= 0 and state[index] == 1:
            trail = _rotate_cycle(trail, trail.index(index))
            parents[trail[-1]] = -1
            cycle_starts.append(trail[-1])
        for finished_index in trail:
            state[finished_index] = 2
        order += trail[::-1]
    return order, cycle_starts


def _rotate_cycle(trail: list[int], start: int) -> list[int]:
    """Return ``trail``, children first, with the cycle at its end turned so that its smallest index comes last."""
    loop = trail[start:]
    root = loop.index(min(loop))
    return trail[:start] + loop[root + 1 :] + loop[: root + 1]
