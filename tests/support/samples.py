"""Entries for tests: small conversations, one of every kind, and what stores have lost before."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import origins, prefix_basis, project
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    Answer,
    Body,
    BranchSummary,
    Compaction,
    Decision,
    Entry,
    Failure,
    Frame,
    Label,
    Note,
    Request,
    Revoke,
    Said,
    Usage,
)

KEY = "session-1"
ODD = 'NUL \x00, separators \u2028\u2029\x85, a lone half \ud83d, quotes "\\", \U0001f980'
"""Text that stores have lost or split records at (failures F154 to F156)."""
HUGE = 2**80
"""An integer that no column and no double holds."""


def words(text: str, role: str = "user") -> Said:
    """Return the body of a message that says ``text``."""
    return Said(measure(Message.of(role, text)))  # type: ignore[arg-type]


def chain(names: Iterable[str], parent: str | None = None) -> list[Entry]:
    """Return messages with these ids, one below the other, the first below ``parent``."""
    entries: list[Entry] = []
    for index, name in enumerate(names):
        role = "assistant" if index % 2 else "user"
        entries.append(Entry(name, entries[-1].id if entries else parent, words(f"text of {name}", role)))
    return entries


def unnumbered(entries: Iterable[Entry]) -> list[Entry]:
    """Return ``entries`` without the numbers that the store gave them."""
    return [replace(entry, seq=0) for entry in entries]


def ids(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of ``entries``."""
    return [entry.id for entry in entries]


def same_request(one: Branch, other: Branch) -> bool:
    """Return whether two branches make the same request: bytes, sizes, calibration and counts."""
    numbers = ("held", "pinned", "keep", "open", "frame", "framed", "seen", "asked", "basis", "model", "anchor")
    folded = ("gauge", "quiet", "compactions", "failures", "compaction")
    undone = ("standing", "found", "spared", "counted", "policy")
    return (
        project(one) == project(other)
        and origins(one) == origins(other)
        and len(one.slots) == len(other.slots)
        and prefix_basis(one) == prefix_basis(other)
        and one.marks.slice(one.keep) == other.marks.slice(other.keep)
        and one.sums.slice(max(0, one.keep - 1)) == other.sums.slice(max(0, other.keep - 1))
        and all(getattr(one, name) == getattr(other, name) for name in (*numbers, *folded, *undone))
    )


def every_kind() -> list[Body]:
    """Return a body of each kind, with what JSON and columns find hard."""
    raw = Raw(b'{"role": "user",  "content":"\\u2028 \\ud83d x", "n": 123456789012345678901234567890, "n": 1}')
    opaque = Opaque("new", Raw(b"[1e400, 01]"), Seal("a", "m", ODD))
    odd = Message("user", (Text(ODD, raw=Raw(b'{"type":"text"}')), opaque))
    call = ToolCall("id\x00", "read", '{"a": "\\ud800", "n": 1e999}')
    results = ToolResult("id\x00", "read", (Text(ODD), Media("image", "image/png", 3, "n", "aGk=")), is_error=True)
    slot = replace(measure(odd), api="unheard-of", raw=raw)
    edit = Edit(Span(0, 1, 0), (Text(ODD, raw=Raw(b"{}")), Message("tool", (results,))), "spill", ODD, -3, "ab")
    return [
        Said(slot, Raw(b'{"uuid" : "x"}')),
        Said(replace(measure(Message("assistant", (Thinking(ODD), call))), base=Raw(b'{"z":0}'))),
        BranchSummary(slot, ODD),
        Frame("d", 10),
        Decision((edit,)),
        Compaction(1, odd, 7, (edit,), 9, 8, "manual", Raw(b'{"items":[1.0]}')),
        Request("b", 2, "model"),
        Answer("b", Usage(1, 2, 3, 4), "end_turn"),
        Revoke("e4"),
        Label("e0", "name"),
        Failure("timed_out", ODD),
        Note("line 7", b"\x00\xff{", {"n": HUGE, "s": ODD, "deep": [[{}], None, True, 1.5]}),
    ]


def long_session() -> list[Entry]:
    """Return a session with a system message, calls, usage, a decision on the tail and two compactions.

    ``s0 m1 … m5 c1 m6 … m9 d c2 m10 m11``: the first compaction keeps slot 5, the second slot 8.
    """
    entries: list[Entry] = []

    def add(name: str, body: Body) -> None:
        entries.append(Entry(name, entries[-1].id if entries else None, body))

    def step(name: str, n: int) -> None:
        """A request and its answer, which calls a tool."""
        slots = sum(isinstance(entry.body, Said) for entry in entries)
        add(f"q{n}", Request(f"basis{n}", slots, "model"))
        add(f"a{n}", Answer(f"basis{n}", Usage(900 + 130 * n, 20)))
        call = ToolCall(f"call{n}", "read", '{"path":"f"}')
        add(name, Said(measure(Message("assistant", (Text(f"answer {n}"), call)))))

    add("f", Frame("frame", 500))
    add("s0", Said(measure(Message.of("system", "Be brief."))))
    for n in (1, 3, 5, 7, 9, 11):
        add(f"m{n}", Said(measure(Message("tool", (ToolResult(f"call{n - 1}", content=(Text("result " * 40 * n),)),)))))
        if n == 5:
            add("c1", Compaction(5, Message.of("user", "first"), 9))
            add("x1", Failure("timed_out"))
        if n == 9:
            cut = Edit(Span(9, 10, 0), (ToolResult("call8", content=(Text("cut"),)),), "spill", saves=30)
            early = Edit(Span(3, 4, 0), (ToolResult("call2", content=(Text("cut"),)),), "prune", saves=20)
            add("d", Decision((early, cut)))
            add("c2", Compaction(8, Message.of("user", "second"), 11))
        if n < 11:
            step(f"m{n + 1}", n + 1)
    return entries
