"""How much of a projection is settled: everything up to the last place that nothing reaches over."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.model.edits import Edit, Span
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolCall, ToolResult
from holdfast.policy.hygiene import SIGNED
from holdfast.policy.projection import _last_break
from holdfast.view.boundaries import legal_cuts


def calls(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids: str) -> Message:
    return Message("tool", tuple(ToolResult(id_, "t", (Text("r"),)) for id_ in ids))


STEPS = [
    *(Message.of(role, "x") for role in ("system", "user", "assistant")),
    *(said(*ids) for said in (calls, results) for ids in ("a", "b", "ab", "aa")),
]
HISTORIES = st.lists(st.sampled_from(STEPS), max_size=12)
EDITS = st.lists(
    st.builds(
        lambda start, length, rule: Edit(Span(start, start + length), (), rule),
        st.integers(0, 14),
        st.integers(0, 2),
        st.sampled_from(["merge", SIGNED]),
    ),
    max_size=2,
)


def break_slowly(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last legal cut, of all there are, where an answer begins that no edit touches."""
    signed = min((edit.span.start for edit in edits if SIGNED in edit.rule), default=position + len(messages))
    for cut in reversed(legal_cuts(messages)):
        edge = position + cut
        starts = 0 < cut < len(messages) and messages[cut].role == "assistant" != messages[cut - 1].role
        if starts and edge <= signed and not any(edit.span.start <= edge <= edit.span.stop for edit in edits):
            return cut
    return 0


def is_answered(messages: Sequence[Message]) -> bool:
    """Whether each result has a call before it that waits for it."""
    waiting: list[str] = []
    for message in messages:
        waiting += [call.id for call in message.calls]
        for result in message.results:
            if result.call_id not in waiting:
                return False
            waiting.remove(result.call_id)
    return True


@given(HISTORIES, st.integers(0, 3), EDITS)
@example([calls("a"), STEPS[1], STEPS[2], results("a"), STEPS[1]], 0, [])
@example([STEPS[1], calls("a"), STEPS[1], calls("b"), results("b"), calls("a"), results("a"), results("a")], 0, [])
@example([STEPS[1], calls("a"), calls("a"), results("a"), calls("b"), results("b")], 0, [])
def test_the_last_break_is_the_last_legal_place_where_an_answer_begins(
    messages: list[Message], position: int, edits: list[Edit]
) -> None:
    """Looked for from the end it is the one among all legal cuts; before a result without a call there is none."""
    found = _last_break(messages, position, edits)
    expected = break_slowly(messages, position, edits)
    assert found == expected or (found == 0 and not is_answered(messages))
