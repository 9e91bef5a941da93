"""A model's text that arrived in pieces is treated as one text everywhere."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from hypothesis_strategies import message_strategy
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall
from holdfast.messages.references import iter_reference_texts
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.text_runs import merge_adjacent_texts
from holdfast.planning.extract.extract import build_extract
from holdfast.planning.summary.must_keep import collect_newest_identifiers
from holdfast.planning.summary.rendering import render_transcript

ANSWER_TEXT = (
    "I looked at https://example.org/a/b?c=d, and the file src/tide/configuration_loader.py reads the limit.\n"
    "We decided that the limit of 123456 stands in src/tide/configuration_loader.py, because deadbeef01 says so."
)


def build_answer(*texts: str) -> Message:
    """Return an answer with ``texts`` and a call."""
    return Message("assistant", (*map(Text, texts), ToolCall("c", "read", '{"path":"a/b.py"}'), Text("so")))


def build_fixed_size_message(message: Message) -> SizedMessage:
    """Return the sized message with a size that does not depend on its pieces."""
    return replace(build_sized_message(message), tokens=100)


@given(message_strategy())
def test_merge_adjacent_texts_keeps_text_and_other_parts(message: Message) -> None:
    """The merged texts equal the message's text, other parts stay, and a message without pieces is returned
    unchanged.
    """
    found = merge_adjacent_texts(message)
    assert "\n".join([part.text for part in found if isinstance(part, Text)]) == message.text
    other_parts = [part for part in message.parts if not isinstance(part, Text)]
    assert [part for part in found if not isinstance(part, Text)] == other_parts
    assert found is message.parts or (message.role == "assistant" and len(found) < len(message.parts))


@given(st.lists(st.integers(0, len(ANSWER_TEXT)), max_size=4))
def test_split_texts_change_no_rendering_search_or_extract(cuts: list[int]) -> None:
    """Wherever a model's text is split into parts, it is rendered, searched and quoted as if it were whole."""
    places = [0, *sorted(cuts), len(ANSWER_TEXT)]
    whole, pieces = (
        build_answer(ANSWER_TEXT),
        build_answer(*[ANSWER_TEXT[start:stop] for start, stop in pairwise(places)]),
    )
    assert render_transcript([pieces]) == render_transcript([whole])
    assert collect_newest_identifiers([pieces], 1, 9) == collect_newest_identifiers([whole], 1, 9)
    assert list(iter_reference_texts(pieces)) == list(iter_reference_texts(whole))
    question = build_fixed_size_message(Message.from_text("user", "Where is it?"))
    assert build_extract([question, build_fixed_size_message(pieces)], [], 2_000) == build_extract(
        [question, build_fixed_size_message(whole)], [], 2_000
    )


def test_merge_adjacent_texts_keeps_user_texts_apart() -> None:
    """Two texts of a user stay two texts."""
    message = Message("user", (Text("src/a"), Text("b.py")))
    assert merge_adjacent_texts(message) is message.parts
    assert render_transcript([message]) == "[User]: src/a\nb.py"
