"""Hypothesis strategies for conversations: well-formed ones, and ones damaged in every way that was met.

A conversation is drawn as a short script of numbers and built from it (``histories``), so examples are quick to make
and shrink to something a person can read. Needs hypothesis, which nothing else in the package imports.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from histories import (
    BLANKS,
    DAMAGE,
    ODD_ARGUMENTS,
    ODD_IDS,
    ODD_NAMES,
    ODD_TEXTS,
    conversation,
    damaged,
    words,
)
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Seal, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import measure
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import (
    FORGOTTEN,
    OVERFLOW,
    Answer,
    Body,
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

# -- small things ------------------------------------------------------------------------------------------------------


def texts(longest: int = 200) -> SearchStrategy[str]:
    """Texts with at least one word, up to ``longest`` characters; now and then with odd characters."""
    plain = st.builds(words, st.integers(0, 99), st.sampled_from([1, 12, 80, longest]))
    return plain | st.sampled_from(ODD_TEXTS[4:]) | st.text(max_size=12).map(lambda text: text + "w")


def media() -> SearchStrategy[Media]:
    """Images and documents that every API with media takes."""
    image = Media("image", "image/png", 68, "", "iVBORw0KGgo=")
    document = Media("document", "application/pdf", 9, "spec.pdf", "JVBERi0xLjQ=")
    return st.sampled_from([image, document, Media("image", "", 0, "", "https://example.org/a.png")])


def seals() -> SearchStrategy[Seal | None]:
    """Seals of the APIs we speak and of others, and none."""
    return st.sampled_from(
        [Seal("anthropic", "", "c2ln"), Seal("openai-chat", "", "reasoning_content"), Seal("gemini", "g", "x"), None]
    )


# -- well-formed conversations -----------------------------------------------------------------------------------------


def conversations(
    *,
    turns: int = 4,
    steps: int = 4,
    longest: int = 400,
    api: str = "anthropic",
    thinking: bool = True,
    pictures: bool = True,
    system: bool = True,
) -> SearchStrategy[list[Message]]:
    """Conversations that are valid on any API: users, agents with parallel calls, every result behind its call.

    ``longest`` is the longest text in characters. Thinking is sealed by ``api``; ``pictures`` are in results too.
    """
    sizes = st.sampled_from([1, 30, 200, longest])
    step = st.tuples(st.integers(0, 3), st.integers(0, 99), sizes, st.integers(0, 2 if thinking else 0))
    turn = st.tuples(st.integers(0, 99), sizes, st.lists(step, max_size=steps), st.booleans())
    script = st.lists(turn, min_size=1, max_size=turns)
    heads = st.sampled_from([False, True][: 1 + system])
    shown = st.sampled_from([False, True][: 1 + pictures])
    return st.builds(partial(conversation, api=api), script, system=heads, pictures=shown)


def broken_histories(
    kinds: Sequence[str] = (), *, most: int = 6, turns: int = 3, longest: int = 200, system: bool = True
) -> SearchStrategy[list[Message]]:
    """Conversations with up to ``most`` kinds of ``DAMAGE`` done to them; ``kinds`` names the ones, all by default."""
    names = tuple(kinds) or tuple(DAMAGE)
    wounds = st.lists(st.tuples(st.sampled_from(names), st.integers(0, 40), st.integers(0, 99)), max_size=most)
    whole = conversations(turns=turns, steps=3, longest=longest, system=system)
    return st.builds(damaged, whole, wounds)


def messages() -> SearchStrategy[Message]:
    """Any message at all: every kind of part in every role, odd ids, blank texts, no parts."""
    ids = st.sampled_from(["call_0", "call_1", *ODD_IDS])
    said: SearchStrategy[Text | Media | Opaque] = st.one_of(
        st.builds(Text, texts(40) | st.sampled_from([*BLANKS, *ODD_TEXTS])), media(), st.just(Opaque("x_future"))
    )
    parts: SearchStrategy[Part] = st.one_of(
        said,
        st.builds(Thinking, st.sampled_from(["", "hm"]), seals()),
        st.builds(ToolCall, ids, st.sampled_from(["read", *ODD_NAMES]), st.sampled_from(["{}", *ODD_ARGUMENTS])),
        st.builds(ToolResult, ids, st.just("read"), st.lists(said, max_size=2).map(tuple), st.booleans()),
    )
    roles = st.sampled_from(["system", "user", "assistant", "tool"])
    return st.builds(Message, cast("Any", roles), st.lists(parts, max_size=4).map(tuple))


def wild_histories(most: int = 8) -> SearchStrategy[list[Message]]:
    """Lists of any messages whatever: nothing can be said of them but that nobody may fall over them."""
    return st.lists(messages(), max_size=most)


# -- logs --------------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: DrawFn, *, most: int = 24) -> list[Entry]:
    """Logs in order from the root: messages with decisions, compactions, requests, usage, frames and undo between.

    Decisions replace one part of a slot that is shown, as policies do, and claim the tokens that they really save.
    """
    said = draw(conversations(turns=4, steps=3) | broken_histories(most=3))[:most]
    bodies: list[Body] = []
    law: list[str] = []
    for count, message in enumerate(said, 1):
        bodies.append(Said(measure(message)))
        for kind in draw(st.lists(st.integers(0, 11), max_size=2)):
            body = _other(draw, kind, said[:count], law)
            if isinstance(body, Decision | Compaction):
                law.append(f"e{len(bodies)}")
            if body is not None:
                bodies.append(body)
    return [Entry(f"e{n}", f"e{n - 1}" if n else None, body, n) for n, body in enumerate(bodies)]


def _other(draw: DrawFn, kind: int, said: Sequence[Message], law: Sequence[str]) -> Body | None:
    """Return a body that is no message, or nothing where this kind makes no sense yet."""
    if kind <= 3:
        return _decision(draw, said)
    if kind == 4:
        pinned = next((n for n, message in enumerate(said) if message.role != "system"), len(said))
        keep = draw(st.integers(pinned, len(said)))
        summary = draw(st.none() | st.builds(Message.of, st.just("user"), texts(60)))
        size = measure(summary).size if summary is not None else 0
        native = draw(
            st.none() | st.just(Raw(b'{"api":"openai-responses","model":"m","items":[{"type":"compaction"}]}'))
        )
        return Compaction(keep, summary, size, native=native) if pinned < len(said) else None
    if kind == 5:
        return Revoke(draw(st.sampled_from(law))) if law else None
    if kind == 6:
        return Frame(draw(st.sampled_from(["", "f", "g"])), draw(st.integers(0, 500)))
    if kind <= 8:
        return Request(draw(st.sampled_from(["b", "c", ""])), len(said), draw(st.sampled_from(["m", "n"])))
    if kind == 9:
        stop = draw(st.sampled_from(["", "", "error", "aborted"]))
        return Answer(draw(st.sampled_from(["b", "c", ""])), Usage(draw(st.integers(0, 5_000)), 10), stop)
    if kind == 10:
        sizes = st.sampled_from([-1, 0, 3, 900, 2_000, 5_000, 10**12])
        return Failure(OVERFLOW, "", draw(sizes), draw(sizes))
    others: list[Body] = [Failure("no-gain"), Note("a remark"), Note(FORGOTTEN), Label("e0", "here"), Frame()]
    return draw(st.sampled_from(others))


def _decision(draw: DrawFn, said: Sequence[Message]) -> Decision | None:
    """Return a decision about a few results or words that shortens each."""
    places = [
        (slot, place)
        for slot, message in enumerate(said)
        for place, part in enumerate(message.parts)
        if isinstance(part, ToolResult | Text) and _shorter(part) is not None
    ]
    if not places:
        return None
    chosen = draw(st.lists(st.sampled_from(places), min_size=1, max_size=2, unique=True))
    edits = []
    for slot, place in chosen:
        part = cast("Any", said[slot].parts[place])
        edits.append(Edit(Span(slot, slot + 1, place), (cast("Any", _shorter(part)),), "test", "", 1))
    return Decision(tuple(edits))


def _shorter(part: Part) -> Part | None:
    if isinstance(part, Text) and len(part.text) > 40:
        return Text("[cut]")
    if isinstance(part, ToolResult) and sum(len(one.text) for one in part.content if isinstance(one, Text)) > 40:
        return replace(part, content=(Text("[cut]"),))
    return None
