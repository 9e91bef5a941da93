"""``normalize_projection`` settles a prefix up to the last cut that no later edit can reach across."""

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
    *(build(*ids) for build in (calls, results) for ids in ("a", "b", "ab", "aa")),
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


def find_last_cut_by_search(messages: Sequence[Message], position: int, edits: Sequence[Edit]) -> int:
    """Return the last legal cut at the start of an answer that only edits within one message touch, or 0."""
    around = [edit for edit in edits if edit.rule != "thinking, call"]
    signed = min((edit.span.start for edit in edits if SIGNED in edit.rule), default=position + len(messages))
    for cut in reversed(find_cut_points(messages)):
        edge = position + cut
        starts = 0 < cut < len(messages) and messages[cut].role == "assistant" != messages[cut - 1].role
        if starts and edge <= signed and not any(edit.span.start <= edge <= edit.span.stop for edit in around):
            return cut
    return 0


def has_no_orphans(messages: Sequence[Message]) -> bool:
    """Return whether each result has an earlier call that has no result yet."""
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
def test_find_last_independent_cut_finds_the_last_legal_answer_start(
    messages: list[Message], position: int, edits: list[Edit]
) -> None:
    """Searching from the end finds the last legal cut at the start of an answer, or 0 where a result has no call."""
    cut = _find_last_independent_cut(messages, position, edits)
    expected = find_last_cut_by_search(messages, position, edits)
    assert cut == expected or (cut == 0 and not has_no_orphans(messages))


def build_tool_loop(turns: int, *, signature: ProviderSignature) -> ConversationState:
    """Return the state of a tool loop that thinks before each call."""
    state = ConversationState.from_entries(
        [
            Entry("f", None, RequestSetup("f", 10)),
            Entry("u", None, MessageEntry(build_sized_message(Message.from_text("user", "go")))),
        ]
    )
    for number in range(turns):
        call = Message("assistant", (Thinking("hm", signature=signature), ToolCall(str(number), "t")))
        state = apply_entries(
            state,
            [Entry("", None, MessageEntry(build_sized_message(message))) for message in (call, results(str(number)))],
        )
    return state


def test_normalize_projection_settles_a_prefix_edited_in_every_answer() -> None:
    """Where each answer loses its thinking, also after another setup, the next request normalizes only new messages."""
    foreign, bound = (
        ProviderSignature("anthropic", "claude-haiku-4-5", "sig"),
        ProviderSignature("anthropic", "claude-opus-5-5", "sig"),
    )
    dialect = get_target("anthropic", "claude-opus-5-5").dialect
    for state in (
        build_tool_loop(30, signature=foreign),
        apply_entry(build_tool_loop(30, signature=bound), Entry("", None, RequestSetup("g", 10))),
    ):
        repair, settled = normalize_projection(state, dialect)
        assert len(repair) == 30
        assert settled is not None
        assert (settled.next_index, len(settled.normalization)) == (59, 29)


def test_normalize_projection_skips_thinking_the_client_already_dropped() -> None:
    """After another setup a message whose bytes hold no thinking keeps them; one whose bytes hold some is encoded
    again.
    """
    state = build_tool_loop(3, signature=ProviderSignature("anthropic", "claude-opus-5-5", "sig"))
    sized_messages = [
        replace(sized_message, api="anthropic", raw=Raw(b'{"content": [ ]}'))
        for sized_message in state.history.sized_messages
    ]
    sized_messages[3] = replace(sized_messages[3], raw=Raw(b'{"content": [{"type":"thinking"}]}'))
    state = apply_entry(replace_raw_bytes(state, sized_messages), Entry("", None, RequestSetup("g", 10)))
    repair, settled = normalize_projection(state, get_target("anthropic", "claude-opus-5-5").dialect)
    assert [edit.span.start for edit in repair] == [3]
    assert settled is not None
    restored = replace_raw_bytes(
        replace(state, view=replace(state.view, normalized_prefix=settled)),
        [replace(sized_message, raw=sized_messages[3].raw) for sized_message in state.history.sized_messages],
    )
    assert [edit.span.start for edit in normalize_projection(restored, settled.dialect)[0]] == [1, 3, 5]


def test_normalize_projection_ignores_calls_in_user_messages() -> None:
    """The result of a call in a user message stays unpaired until an answer uses the same id."""
    settled = None
    state = ConversationState()
    messages = [Message("user", (ToolCall("a", "t"),)), results("a"), *(Message.from_text(role, "x") for role in ROLES)]
    for message in (*messages, calls("a")):
        state = apply_entry(
            replace(state, view=replace(state.view, normalized_prefix=settled)),
            Entry("", None, MessageEntry(build_sized_message(message))),
        )
        repair, settled = normalize_projection(state, get_target("openai-chat", "gpt-5").dialect)
        assert (
            repair
            == normalize_projection(
                replace(state, view=replace(state.view, normalized_prefix=None)),
                get_target("openai-chat", "gpt-5").dialect,
            )[0]
        )
