"""A model's text that came in pieces is one text, whoever reads it."""

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

SAID = (
    "I looked at https://example.org/a/b?c=d, and the file src/tide/configuration_loader.py reads the limit.\n"
    "We decided that the limit of 123456 stands in src/tide/configuration_loader.py, because deadbeef01 says so."
)


def answer(*texts: str) -> Message:
    """Return an answer of these texts and a call."""
    return Message("assistant", (*map(Text, texts), ToolCall("c", "read", '{"path":"a/b.py"}'), Text("so")))


def slot(message: Message) -> SizedMessage:
    """Return the message as a slot of a size that does not tell its pieces."""
    return replace(build_sized_message(message), tokens=100)


@given(message_strategy())
def test_texts_are_those_of_the_message(message: Message) -> None:
    """The texts of the parts are the message's text; all other parts stay, and a message without pieces as it is."""
    found = merge_adjacent_texts(message)
    assert "\n".join([part.text for part in found if isinstance(part, Text)]) == message.text
    kept = [part for part in message.parts if not isinstance(part, Text)]
    assert [part for part in found if not isinstance(part, Text)] == kept
    assert found is message.parts or (message.role == "assistant" and len(found) < len(message.parts))


@given(st.lists(st.integers(0, len(SAID)), max_size=4))
def test_pieces_change_nothing(cuts: list[int]) -> None:
    """Wherever a model's text is cut into parts, it is rendered, quoted and looked through as if it were not."""
    places = [0, *sorted(cuts), len(SAID)]
    whole, pieces = answer(SAID), answer(*[SAID[start:stop] for start, stop in pairwise(places)])
    assert render_transcript([pieces]) == render_transcript([whole])
    assert collect_newest_identifiers([pieces], 1, 9) == collect_newest_identifiers([whole], 1, 9)
    assert list(iter_reference_texts(pieces)) == list(iter_reference_texts(whole))
    asked = slot(Message.from_text("user", "Where is it?"))
    assert build_extract([asked, slot(pieces)], [], 2_000) == build_extract([asked, slot(whole)], [], 2_000)


def test_words_of_a_user_stay_apart() -> None:
    """What a user says in two texts are two texts."""
    said = Message("user", (Text("src/a"), Text("b.py")))
    assert merge_adjacent_texts(said) is said.parts
    assert render_transcript([said]) == "[User]: src/a\nb.py"
