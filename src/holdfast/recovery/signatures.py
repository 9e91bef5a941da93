"""Unsealing: what a provider sealed in answers of this conversation and takes no more is left out, for good.

Thinking goes whole; words and calls that carry a signature stay without it. Of what a provider compacted the readable
twin is shown; what a client had compacted has none here, so a line says that there was something. What the next answers
hold is sealed anew and stays.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Media, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import MESSAGE_OVERHEAD, measure
from holdfast.normalize.parts import may_go, unnamed
from holdfast.normalize.signatures import STAND_IN
from holdfast.planning.builder import Draft
from holdfast.state.branch.branch import Branch
from holdfast.state.branch.view import native_of, slot_after
from holdfast.state.dialect import Dialect
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import Compaction, Decision
from holdfast.state.target import Target

RULE = "unseal"
"""Rule of the edits, and trigger of the compaction, that leave out what is sealed."""
RESPONSES = "openai-responses"
_WHY = "the provider takes no more what it had sealed here: another key or organisation asks now"
_SEALING: dict[str, tuple[type, ...]] = {
    "anthropic": (Thinking,),
    RESPONSES: (Thinking,),
    "gemini": (Thinking, Text, ToolCall, Opaque),
}
"""The kinds of parts that an API seals; elsewhere a seal is only the name of a field."""
_COMPACTED = frozenset({"compaction", "compaction_summary"})
"""Items in which Responses gives back a whole past, sealed."""
GONE = (
    "[What was said and done up to here, beside the messages above, was summarised in a form that cannot be read any "
    "more. Look again at what you need, and ask for what is missing.]"
)
"""What is shown in place of one."""
_DETAILS = "message.reasoning_details"
"""The part in which servers of Chat Completions send thinking that somebody else sealed."""


def unseal(draft: Draft) -> Draft:
    """Return the draft without what is sealed in all that is shown; the draft itself where nothing is."""
    without = draft.decide(tuple(_edits(draft.branch, draft.target.dialect)))
    twin = _twin(draft.branch, draft.target)
    return without if twin is None else without.compact(twin)


def is_of_seals(what: Decision | Compaction) -> bool:
    """Whether ``what`` leaves out what is sealed, and does nothing else."""
    if isinstance(what, Compaction):
        return what.trigger == RULE
    return all(edit.rule == RULE for edit in what.edits)


def _edits(branch: Branch, dialect: Dialect) -> Iterator[Edit]:
    """Yield an edit for each sealed part of an answer that is shown as it was said."""
    index = branch.keep
    while index < len(branch.slots):
        edited = {edit.span.part for edit in branch.edits.get(index, ())}
        message = branch.messages[index]
        if message.role == "assistant" and None not in edited:
            for place, part in enumerate(message.parts):
                if place not in edited and _is_sealed(part, dialect):
                    put = _bare(part, dialect)
                    saves = _tokens(part) - sum(map(_tokens, put))
                    yield Edit(Span(index, index + 1, place), put, RULE, _WHY, saves)
        index = slot_after(branch, index)


def _is_sealed(part: Part, dialect: Dialect) -> bool:
    """Whether ``part`` would be sent with something in it that only its maker can check."""
    if isinstance(part, Opaque) and (part.kind == _DETAILS or _is_past(part, dialect)):
        return True
    if isinstance(part, Media | ToolResult) or part.seal is None or not isinstance(part, _SEALING.get(dialect.api, ())):
        return False
    return part.seal.data not in {"", STAND_IN} and may_go(part.seal, dialect)


def _is_past(part: Part, dialect: Dialect) -> bool:
    """Whether ``part`` is a past that its provider compacted for the client; Anthropic's can be read."""
    return dialect.api == RESPONSES and isinstance(part, Opaque) and part.kind in _COMPACTED


def _bare(part: Part, dialect: Dialect) -> tuple[Part, ...]:
    """Return what is left of a sealed part: what it says, in bytes of our own, or nothing."""
    if _is_past(part, dialect):
        return (Text(GONE),)
    bare = None if isinstance(part, Thinking) else unnamed(part)
    return () if bare is None else (bare,)


def _tokens(part: Part) -> int:
    return measure(Message("assistant", (part,))).size - MESSAGE_OVERHEAD


def _twin(branch: Branch, target: Target) -> Compaction | None:
    """Return the compaction in force with its readable twin alone; nothing where only that is shown, or none is there.

    Its edits are in force already.
    """
    made = branch.compaction
    native = None if made is None else native_of(made)
    if made is None or native is None or made.summary is None or not made.summary.parts:
        return None
    if native.api != target.api or native.model not in {"", target.model}:
        return None
    return replace(made, size=measure(made.summary).size, edits=(), trigger=RULE, native=None, by="")
