"""Entries as a reader collects them: unique ids, parents that exist, slots counted from the root."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.formats.base import NO_STEP, PAID, Problem, Recording
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import measure
from holdfast.messages.sized_message import Slot
from holdfast.state.entries import Answer, Body, BranchSummary, Entry, Note, Request, Said, Usage
from holdfast.state.lazy_entries import LazyBody, LazyEntry, entries_of


class Call(Struct, frozen=True):
    """What is recorded of a model call beside its words."""

    model: str = ""
    usage: Usage = Usage()
    stop: str = ""
    line: int = 0
    """The line that told the usage."""
    is_paid: bool = False
    """Whether the usage is of a request that showed other words (``PAID``)."""


class Log:
    """A tree in the making.

    An id is the tool's own. Where an entry stands behind something that a *later* line of the file completed, the
    parent's digest is added: a file that is read again after it has grown never gives one id to two things.
    """

    def __init__(self) -> None:
        self.entries: list[Entry | LazyEntry] = []
        self.depth: dict[str | None, int] = {None: 0}
        """Slots from the root to an entry, with its own."""
        self.skipped: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self._twins: dict[str, int] = {}
        """How many entries wanted an id."""
        self._shaped: dict[str | None, int] = {None: 0}
        """The last line that had a part in an entry or in what it hangs on."""

    def add(
        self,
        id_: str,
        parent: str | None,
        body: Body | LazyBody,
        at: int | None = None,
        line: int = 0,
        last: int = 0,
    ) -> str:
        """Append an entry read from lines ``line`` to ``last``; return the id it got."""
        shaped = self._shaped[parent]
        name = id_ if shaped <= line else f"{id_}+{short(parent or '')}"
        name = self._free(name or f"line-{line}")
        seq = len(self.entries) + 1
        if isinstance(body, LazyBody):
            kind = body.kind
            self.entries.append(LazyEntry(name, parent, kind, body.read, seq, at))
        else:
            kind = type(body)
            self.entries.append(Entry(name, parent, body, seq, at))
        self.depth[name] = self.depth[parent] + (kind in (Said, BranchSummary))
        self._shaped[name] = max(shaped, line, last)
        return name

    def _free(self, name: str) -> str:
        """Return ``name``, or what it becomes because it is taken."""
        free = name
        while free in self.depth:
            self._twins[name] = self._twins.get(name, 1) + 1
            free = f"{name}~{self._twins[name]}"
        return free

    def answer(
        self,
        id_: str,
        parent: str | None,
        said: Said | LazyBody,
        call: Call,
        at: int | None,
        line: int = 0,
        last: int = 0,
    ) -> str:
        """Append the three entries of a model call; return the id of the last."""
        if call.model or call.stop not in NO_STEP:
            body = Request(basis="", slots=self.depth[parent], model=call.model)
            parent = self.add(f"{id_}+request", parent, body, None, line)
        name = self.add(id_, parent, said, at, line, last)
        kind = "usage" if call.line else "answer"
        answer = Answer(PAID if call.is_paid else "", call.usage, call.stop)
        return self.add(f"{name}+{kind}", name, answer, at, max(line, last), call.line)

    def damage(self, number: int, raw: bytes, reason: str, parent: str | None) -> None:
        """Keep a line that could not be read as a note behind ``parent``, and report it."""
        self.problem(number, reason)
        mark = blake2b(raw + (parent or "").encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
        self.add(f"line-{number}-{mark}", parent, Note(reason, raw, {"line": number}), None, number)

    def problem(self, line: int, reason: str) -> None:
        """Report something about ``line``."""
        self.problems.append(Problem(line, reason))

    def finish(self, recording: Recording) -> Recording:
        """Return ``recording`` with what was collected."""
        problems = tuple(sorted(self.problems, key=lambda problem: problem.line))
        return replace(recording, entries=entries_of(self.entries), skipped=dict(self.skipped), problems=problems)


def short(text: str) -> str:
    """Return eight hexadecimal digits for ``text``."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def slot_of(message: Message, api: str, raw: bytes | Raw | None) -> Slot:
    """Return ``message`` measured, with the bytes it came in."""
    slot = measure(message)
    wire = None if raw is None else raw if isinstance(raw, Raw) else Raw(raw)
    return Slot(slot.message, slot.size, slot.digest, api, wire)


def origin_of(lines: Sequence[bytes]) -> Raw:
    """Return the lines an entry came from as one JSON value: the line, or a list of them."""
    return Raw(lines[0]) if len(lines) == 1 else Raw(b"[" + b",".join(lines) + b"]")


def ordered(up: list[int]) -> tuple[list[int], list[int]]:
    """Return all indexes so that each stands behind its parent ``up[i]`` (-1: a root), and those cut loose.

    A cycle is cut at its smallest index, whose link in ``up`` becomes -1. Linear time, no recursion.
    """
    state, order, cut = [0] * len(up), [], []
    for start in range(len(up)):
        trail, index = [], start
        while index >= 0 and not state[index]:
            state[index] = 1
            trail.append(index)
            index = up[index]
        if index >= 0 and state[index] == 1:
            trail = _opened(trail, trail.index(index))
            up[trail[-1]] = -1
            cut.append(trail[-1])
        for done in trail:
            state[done] = 2
        order += trail[::-1]
    return order, cut


def _opened(trail: list[int], start: int) -> list[int]:
    """Return ``trail``, children first, with the cycle at its end turned so that its smallest index comes last."""
    loop = trail[start:]
    root = loop.index(min(loop))
    return trail[:start] + loop[root + 1 :] + loop[: root + 1]
