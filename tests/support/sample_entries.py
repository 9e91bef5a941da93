"""Entries for tests: small conversations, one entry of every kind, and values that stores have lost before."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    EntryBody,
    FailureEntry,
    LabelEntry,
    MessageEntry,
    NoteEntry,
    RequestEntry,
    RequestSetup,
    RevokeEntry,
    Usage,
)
from holdfast.state.view import (
    build_projection,
    compute_prefix_digest,
    get_valid_measured_request,
    list_projection_origins,
)

SAMPLE_KEY = "session-1"
ODD_TEXT = 'NUL \x00, separators \u2028\u2029\x85, a lone half \ud83d, quotes "\\", \U0001f980'
"""Text that stores have lost or split records at (failures F154 to F156)."""
HUGE_INTEGER = 2**80
"""An integer that no column and no double holds."""


def make_message_entry_body(text: str, role: str = "user") -> MessageEntry:
    """Return the body of a message with the text ``text``."""
    return MessageEntry(build_sized_message(Message.from_text(role, text)))  # type: ignore[arg-type]


def make_message_chain(names: Iterable[str], parent: str | None = None) -> list[Entry]:
    """Return messages with these ids, each the child of the one before, the first the child of ``parent``."""
    entries: list[Entry] = []
    for index, name in enumerate(names):
        role = "assistant" if index % 2 else "user"
        entries.append(
            Entry(name, entries[-1].id if entries else parent, make_message_entry_body(f"text of {name}", role))
        )
    return entries


def drop_sequence_numbers(entries: Iterable[Entry]) -> list[Entry]:
    """Return ``entries`` without the sequence numbers that the store assigned."""
    return [replace(entry, seq=0) for entry in entries]


def list_ids(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of ``entries``."""
    return [entry.id for entry in entries]


def is_same_request(first: ConversationState, second: ConversationState) -> bool:
    """Return whether two states make the same request: bytes, sizes, calibration and counts."""
    view_fields = ("pinned_count", "first_kept", "shown_tokens", "compaction", "protected_parts", "turn_limit_start")
    return (
        build_projection(first) == build_projection(second)
        and list_projection_origins(first) == list_projection_origins(second)
        and len(first.history.sized_messages) == len(second.history.sized_messages)
        and compute_prefix_digest(first) == compute_prefix_digest(second)
        and first.history.projection_digests.slice(first.view.first_kept)
        == second.history.projection_digests.slice(second.view.first_kept)
        and first.history.cumulative_tokens.slice(max(0, first.view.first_kept - 1))
        == second.history.cumulative_tokens.slice(max(0, second.view.first_kept - 1))
        and get_valid_measured_request(first) == get_valid_measured_request(second)
        and (first.setup, first.setup_changed_at) == (second.setup, second.setup_changed_at)
        and first.history.open_call_ids == second.history.open_call_ids
        and all(getattr(first.view, name) == getattr(second.view, name) for name in view_fields)
        and (first.last_request, first.counters) == (second.last_request, second.counters)
        and first.usage.calibration == second.usage.calibration
        and first.policy_name == second.policy_name
    )


def make_all_entry_bodies() -> list[EntryBody]:
    """Return an entry body of each kind, with values that JSON and database columns handle badly."""
    raw = Raw(b'{"role": "user",  "content":"\\u2028 \\ud83d x", "n": 123456789012345678901234567890, "n": 1}')
    opaque = Opaque("new", Raw(b"[1e400, 01]"), ProviderSignature("a", "m", ODD_TEXT))
    odd_message = Message("user", (Text(ODD_TEXT, raw=Raw(b'{"type":"text"}')), opaque))
    call = ToolCall("id\x00", "read", '{"a": "\\ud800", "n": 1e999}')
    results = ToolResult("id\x00", "read", (Text(ODD_TEXT), Media("image", "image/png", 3, "n", "aGk=")), is_error=True)
    sized_message = replace(build_sized_message(odd_message), api="unheard-of", raw=raw)
    edit = Edit(
        Span(0, 1, 0), (Text(ODD_TEXT, raw=Raw(b"{}")), Message("tool", (results,))), "spill", ODD_TEXT, -3, "ab"
    )
    return [
        MessageEntry(sized_message, Raw(b'{"uuid" : "x"}')),
        MessageEntry(
            replace(build_sized_message(Message("assistant", (Thinking(ODD_TEXT), call))), base_raw=Raw(b'{"z":0}'))
        ),
        BranchSummaryEntry(sized_message, ODD_TEXT),
        RequestSetup("d", 10),
        DecisionEntry((edit,)),
        CompactionEntry(1, odd_message, 7, (edit,), 9, 8, "manual", Raw(b'{"items":[1.0]}')),
        RequestEntry("b", 2, "model"),
        AnswerEntry("b", Usage(1, 2, 3, 4), "end_turn"),
        RevokeEntry("e4"),
        LabelEntry("e0", "name"),
        FailureEntry("timed_out", ODD_TEXT),
        NoteEntry("line 7", b"\x00\xff{", {"n": HUGE_INTEGER, "s": ODD_TEXT, "deep": [[{}], None, True, 1.5]}),
    ]


def make_long_session() -> list[Entry]:
    """Return a session with a system message, calls, usage, a decision on the tail and two compactions.

    ``s0 m1 … m5 c1 m6 … m9 d c2 m10 m11``: the first compaction keeps the messages from #5 on,
    the second from #8 on.
    """
    entries: list[Entry] = []

    def add(name: str, body: EntryBody) -> None:
        entries.append(Entry(name, entries[-1].id if entries else None, body))

    def add_step(name: str, n: int) -> None:
        """Add a request and its answer, which calls a tool."""
        message_count = sum(isinstance(entry.body, MessageEntry) for entry in entries)
        add(f"q{n}", RequestEntry(f"basis{n}", message_count, "model"))
        add(f"a{n}", AnswerEntry(f"basis{n}", Usage(900 + 130 * n, 20)))
        call = ToolCall(f"call{n}", "read", '{"path":"f"}')
        add(name, MessageEntry(build_sized_message(Message("assistant", (Text(f"answer {n}"), call)))))

    add("f", RequestSetup("frame", 500))
    add("s0", MessageEntry(build_sized_message(Message.from_text("system", "Be brief."))))
    for n in (1, 3, 5, 7, 9, 11):
        add(
            f"m{n}",
            MessageEntry(
                build_sized_message(Message("tool", (ToolResult(f"call{n - 1}", content=(Text("result " * 40 * n),)),)))
            ),
        )
        if n == 5:
            add("c1", CompactionEntry(5, Message.from_text("user", "first"), 9))
            add("x1", FailureEntry("timed_out"))
        if n == 9:
            spill_edit = Edit(Span(9, 10, 0), (ToolResult("call8", content=(Text("cut"),)),), "spill", saves=30)
            prune_edit = Edit(Span(3, 4, 0), (ToolResult("call2", content=(Text("cut"),)),), "prune", saves=20)
            add("d", DecisionEntry((prune_edit, spill_edit)))
            add("c2", CompactionEntry(8, Message.from_text("user", "second"), 11))
        if n < 11:
            add_step(f"m{n + 1}", n + 1)
    return entries
