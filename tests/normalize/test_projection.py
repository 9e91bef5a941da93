"""How much of a projection is settled: everything up to the last place that nothing reaches over."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.messages.parts import ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.projection import _find_last_independent_cut, normalize_projection
from holdfast.normalize.signatures import SIGNATURE_RULE as SIGNED
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import Entry, MessageEntry, RequestSetup
from holdfast.state.fold.fold_entries import apply_entries, apply_entry
from holdfast.state.fold.rewind import replace_raw_bytes

ROLES = ("user", "assistant", "user", "assistant", "user")


def calls(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCall(id_, "t") for id_ in ids))


def results(*ids: str) -> Message:
    return Message("tool", tuple(ToolResult(id_, "t", (Text("r"),)) for id_ in ids))


STEPS = [
    *(Message.from_text(role, "x") for role in ("system", "user", "assistant")),
    *(said(*ids) for said in (calls, results) for ids in ("a", "b", "ab", "aa")),
]
HISTORIES = st.lists(st.sampled_from(STEPS), max_size=12)
EDITS = st.lists(
    st.builds(
        lambda start, length, rule: Edit(Span(start, start + length), (), rule),
        st.integers(0, 14),
        st.integers(0, 2),
        st.sampled_from(["merge", SIGNED, "thinking, call", "thinking, server-pair"]),
    ),
    max_size=2,
)


def break_slowly(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last legal cut, of all there are, where an answer begins that only edits of one message touch."""
    around = [edit for edit in edits if edit.rule != "thinking, call"]
    signed = min((edit.span.start for edit in edits if SIGNED in edit.rule), default=position + len(messages))
    for cut in reversed(find_cut_points(messages)):
        edge = position + cut
        starts = 0 < cut < len(messages) and messages[cut].role == "assistant" != messages[cut - 1].role
        if starts and edge <= signed and not any(edit.span.start <= edge <= edit.span.stop for edit in around):
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
    found = _find_last_independent_cut(messages, position, edits)
    expected = break_slowly(messages, position, edits)
    assert found == expected or (found == 0 and not is_answered(messages))


def work(turns: int, *, seal: ProviderSignature) -> ConversationState:
    """Return the branch of a loop that thinks before each call."""
    branch = ConversationState.from_entries(
        [
            Entry("f", None, RequestSetup("f", 10)),
            Entry("u", None, MessageEntry(build_sized_message(Message.from_text("user", "go")))),
        ]
    )
    for number in range(turns):
        call = Message("assistant", (Thinking("hm", signature=seal), ToolCall(str(number), "t")))
        branch = apply_entries(
            branch, [Entry("", None, MessageEntry(build_sized_message(one))) for one in (call, results(str(number)))]
        )
    return branch


def test_what_is_edited_everywhere_is_settled_too() -> None:
    """Where each answer loses its thinking, or did so when another frame came, a request looks at what is new alone."""
    other, bound = (
        ProviderSignature("anthropic", "claude-haiku-4-5", "sig"),
        ProviderSignature("anthropic", "claude-opus-5-5", "sig"),
    )
    dialect = get_target("anthropic", "claude-opus-5-5").dialect
    for branch in (work(30, seal=other), apply_entry(work(30, seal=bound), Entry("", None, RequestSetup("g", 10)))):
        repair, settled = normalize_projection(branch, dialect)
        assert len(repair) == 30
        assert settled is not None
        assert (settled.next_index, len(settled.normalization)) == (59, 29)


def test_thinking_that_its_client_left_out_is_not_taken_out_again() -> None:
    """What has none keeps its bytes under another frame; where bytes hold some, they are made anew without it."""
    branch = work(3, seal=ProviderSignature("anthropic", "claude-opus-5-5", "sig"))
    said = [replace(slot, api="anthropic", raw=Raw(b'{"content": [ ]}')) for slot in branch.history.sized_messages]
    said[3] = replace(said[3], raw=Raw(b'{"content": [{"type":"thinking"}]}'))
    branch = apply_entry(replace_raw_bytes(branch, said), Entry("", None, RequestSetup("g", 10)))
    repair, settled = normalize_projection(branch, get_target("anthropic", "claude-opus-5-5").dialect)
    assert [edit.span.start for edit in repair] == [3]
    assert settled is not None
    back = replace_raw_bytes(
        replace(branch, view=replace(branch.view, normalized_prefix=settled)),
        [replace(slot, raw=said[3].raw) for slot in branch.history.sized_messages],
    )
    assert [edit.span.start for edit in normalize_projection(back, settled.dialect)[0]] == [1, 3, 5]


def test_a_call_that_no_answer_made_answers_nothing() -> None:
    """A result of a user's call waits, as one without a call does, for the answer that uses its id later."""
    settled = None
    branch = ConversationState()
    told = [Message("user", (ToolCall("a", "t"),)), results("a"), *(Message.from_text(role, "x") for role in ROLES)]
    for message in (*told, calls("a")):
        branch = apply_entry(
            replace(branch, view=replace(branch.view, normalized_prefix=settled)),
            Entry("", None, MessageEntry(build_sized_message(message))),
        )
        repair, settled = normalize_projection(branch, get_target("openai-chat", "gpt-5").dialect)
        assert (
            repair
            == normalize_projection(
                replace(branch, view=replace(branch.view, normalized_prefix=None)),
                get_target("openai-chat", "gpt-5").dialect,
            )[0]
        )
