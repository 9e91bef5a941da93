"""Hypothesis strategies for conversations, well-formed and damaged, and for logs.

A conversation is drawn as a short script of numbers from which ``build_conversation`` builds it, so examples are quick
to make and shrink to something a person can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import Raw
from msgspec.structs import replace
from sample_conversations import (
    BLANK_TEXTS,
    DAMAGE_BY_NAME,
    ODD_ARGUMENTS,
    ODD_IDS,
    ODD_NAMES,
    ODD_TEXTS,
    build_conversation,
    damage_history,
    make_text,
)

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FAILURE_OVERFLOW,
    NOTE_WINDOW_FORGOTTEN,
    AnswerEntry,
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

# -- parts -------------------------------------------------------------------------------------------------------------


def text_strategy(longest: int = 200) -> SearchStrategy[str]:
    """Texts with at least one word, up to ``longest`` characters, some with odd characters."""
    plain = st.builds(make_text, st.integers(0, 99), st.sampled_from([1, 12, 80, longest]))
    return plain | st.sampled_from(ODD_TEXTS[4:]) | st.text(max_size=12).map(lambda text: text + "w")


def media_strategy() -> SearchStrategy[Media]:
    """Images and documents that every API with media takes."""
    image = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    document = Media("document", "application/pdf", 9, "spec.pdf", "JVBERi0xLjQ=")
    return st.sampled_from([image, document, Media("image", "", 0, "", "https://example.org/a.png")])


def signature_strategy() -> SearchStrategy[ProviderSignature | None]:
    """Signatures of several APIs, and none."""
    return st.sampled_from(
        [
            ProviderSignature("anthropic", "", "c2ln"),
            ProviderSignature("openai-chat", "", "reasoning_content"),
            ProviderSignature("gemini", "g", "x"),
            None,
        ]
    )


# -- well-formed conversations -----------------------------------------------------------------------------------------


def conversation_strategy(
    *,
    turns: int = 4,
    steps: int = 4,
    longest: int = 400,
    api: str = "anthropic",
    thinking: bool = True,
    pictures: bool = True,
    system: bool = True,
) -> SearchStrategy[list[Message]]:
    """Conversations that are valid on any API: users, agents with parallel calls, every result after its call.

    ``longest`` is the length of the longest text in characters. ``api`` signs the thinking; ``pictures`` are in results
    too.
    """
    sizes = st.sampled_from([1, 30, 200, longest])
    step = st.tuples(st.integers(0, 3), st.integers(0, 99), sizes, st.integers(0, 2 if thinking else 0))
    turn = st.tuples(st.integers(0, 99), sizes, st.lists(step, max_size=steps), st.booleans())
    script = st.lists(turn, min_size=1, max_size=turns)
    with_system = st.sampled_from([False, True][: 1 + system])
    picture_choices = st.sampled_from([False, True][: 1 + pictures])
    return st.builds(partial(build_conversation, api=api), script, system=with_system, pictures=picture_choices)


def broken_history_strategy(
    kinds: Sequence[str] = (), *, max_damages: int = 6, turns: int = 3, longest: int = 200, system: bool = True
) -> SearchStrategy[list[Message]]:
    """Conversations with up to ``max_damages`` damages of these ``kinds`` of ``DAMAGE_BY_NAME``, by default of any."""
    names = tuple(kinds) or tuple(DAMAGE_BY_NAME)
    damages = st.lists(st.tuples(st.sampled_from(names), st.integers(0, 40), st.integers(0, 99)), max_size=max_damages)
    valid_conversations = conversation_strategy(turns=turns, steps=3, longest=longest, system=system)
    return st.builds(damage_history, valid_conversations, damages)


def message_strategy() -> SearchStrategy[Message]:
    """Any message: every kind of part in every role, odd ids, blank texts, no parts."""
    ids = st.sampled_from(["call_0", "call_1", *ODD_IDS])
    content_parts: SearchStrategy[Text | Media | Opaque] = st.one_of(
        st.builds(Text, text_strategy(40) | st.sampled_from([*BLANK_TEXTS, *ODD_TEXTS])),
        media_strategy(),
        st.just(Opaque("x_future")),
    )
    parts: SearchStrategy[Part] = st.one_of(
        content_parts,
        st.builds(Thinking, st.sampled_from(["", "hm"]), signature_strategy()),
        st.builds(ToolCall, ids, st.sampled_from(["read", *ODD_NAMES]), st.sampled_from(["{}", *ODD_ARGUMENTS])),
        st.builds(ToolResult, ids, st.just("read"), st.lists(content_parts, max_size=2).map(tuple), st.booleans()),
    )
    roles = st.sampled_from(["system", "user", "assistant", "tool"])
    return st.builds(Message, cast("Any", roles), st.lists(parts, max_size=4).map(tuple))


def wild_history_strategy(max_messages: int = 8) -> SearchStrategy[list[Message]]:
    """Lists of any messages; the only property they share is that no function may crash on them."""
    return st.lists(message_strategy(), max_size=max_messages)


# -- logs --------------------------------------------------------------------------------------------------------------


@st.composite
def log_strategy(draw: DrawFn, *, max_messages: int = 24) -> list[Entry]:
    """Logs in order from the root: messages, decisions, compactions, requests, usage, setups and revocations.

    Decisions replace parts of messages, as policies do.
    """
    history = draw(conversation_strategy(turns=4, steps=3) | broken_history_strategy(max_damages=3))[:max_messages]
    bodies: list[EntryBody] = []
    decision_ids: list[str] = []
    for count, message in enumerate(history, 1):
        bodies.append(MessageEntry(build_sized_message(message)))
        for kind in draw(st.lists(st.integers(0, 11), max_size=2)):
            body = _draw_other_body(draw, kind, history[:count], decision_ids)
            if isinstance(body, DecisionEntry | CompactionEntry):
                decision_ids.append(f"e{len(bodies)}")
            if body is not None:
                bodies.append(body)
    return [Entry(f"e{n}", f"e{n - 1}" if n else None, body, n) for n, body in enumerate(bodies)]


def _draw_other_body(
    draw: DrawFn, kind: int, messages: Sequence[Message], decision_ids: Sequence[str]
) -> EntryBody | None:
    """Return a body that is no message, or None if this kind has nothing to refer to yet."""
    if kind <= 3:
        return _draw_decision(draw, messages)
    if kind == 4:
        first_unpinned = next((n for n, message in enumerate(messages) if message.role != "system"), len(messages))
        keep = draw(st.integers(first_unpinned, len(messages)))
        summary = draw(st.none() | st.builds(Message.from_text, st.just("user"), text_strategy(60)))
        size = build_sized_message(summary).tokens if summary is not None else 0
        native = draw(
            st.none() | st.just(Raw(b'{"api":"openai-responses","model":"m","items":[{"type":"compaction"}]}'))
        )
        return CompactionEntry(keep, summary, size, native=native) if first_unpinned < len(messages) else None
    if kind == 5:
        if not decision_ids:
            return None
        return RevokeEntry(draw(st.sampled_from(decision_ids)), is_restored=draw(st.booleans()))
    if kind == 6:
        return RequestSetup(draw(st.sampled_from(["", "f", "g"])), draw(st.integers(0, 500)))
    if kind <= 8:
        return RequestEntry(draw(st.sampled_from(["b", "c", ""])), len(messages), draw(st.sampled_from(["m", "n"])))
    if kind == 9:
        stop = draw(st.sampled_from(["", "", "error", "aborted"]))
        return AnswerEntry(draw(st.sampled_from(["b", "c", ""])), Usage(draw(st.integers(0, 5_000)), 10), stop)
    if kind == 10:
        sizes = st.sampled_from([-1, 0, 3, 900, 2_000, 5_000, 10**12])
        return FailureEntry(FAILURE_OVERFLOW, "", draw(sizes), draw(sizes))
    other_bodies: list[EntryBody] = [
        FailureEntry("no-gain"),
        NoteEntry("a remark"),
        NoteEntry(NOTE_WINDOW_FORGOTTEN),
        LabelEntry("e0", "here"),
        RequestSetup(),
    ]
    return draw(st.sampled_from(other_bodies))


def _draw_decision(draw: DrawFn, messages: Sequence[Message]) -> DecisionEntry | None:
    """Return a decision that shortens one or two long results or texts, or None if there are none."""
    places = [
        (slot, place)
        for slot, message in enumerate(messages)
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolResult | Text) and _cut_long_part(part) is not None
    ]
    if not places:
        return None
    chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True))
    edits = []
    for slot, place in chosen:
        part = cast("Any", messages[slot].parts[place])
        edits.append(Edit(Span(slot, slot + 1, place), (cast("Any", _cut_long_part(part)),), "test", "", 1))
    return DecisionEntry(tuple(edits))


def _cut_long_part(part: Part) -> Part | None:
    if isinstance(part, Text) and len(part.text) > 40:
        return Text("[cut]")
    if (
        isinstance(part, ToolResult)
        and sum(len(inner_part.text) for inner_part in part.content if isinstance(inner_part, Text)) > 40
    ):
        return replace(part, content=(Text("[cut]"),))
    return None
