"""What was judged is not judged again, and nothing of ours goes out that was not."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace

from holdfast.engine.run.check_request import is_already_checked, make_checked_request
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.request_body import build_request_body, parse_request, render_request
from holdfast.providers.rules.validate import validate_request

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "gpt-5"),
    ("openai-responses", "gpt-5"),
    ("gemini", "gemini-2.5-pro"),
]
NUMBERS = st.integers(0, 30)


def opened(slots, model):
    """Return the body that a client of ``model`` sends for ``slots``, opened."""
    return parse_request(
        build_request_body(*model, slots, setup_fields={"max_tokens": 9} if model[0] == "anthropic" else {}), model[0]
    )


def broken(request):
    """Return the rules that a request breaks."""
    return {
        found.rule
        for found in validate_request(request.body, request.api, model=request.model)
        if found.level == "error"
    }


def two_requests(messages, model, at, place, other=None):
    """Return a request of a client and a later one as they go out, words of both cut, and the client's own later one.

    With ``other`` one more message of the later one is cut, whatever it is, and wherever it stands.
    Nothing where the client's body does not grow by whole messages there, or where nothing can be cut.
    """
    later = opened([SizedMessage(message) for message in messages if message.role != "system"], model)
    ends = [place for place, slot in enumerate(later.messages) if place and slot.message.role == "assistant"]
    if not ends:
        return None
    earlier = parse_request(render_request(later, later.messages[: ends[at % len(ends)]]), later.api)
    count = len(earlier.messages)
    wordy = [at for at, slot in enumerate(earlier.messages) if not (slot.message.calls or slot.message.results)]
    if not wordy or [*map(bytes_of, earlier.messages)] != [*map(bytes_of, later.messages[:count])]:
        return None
    cut = wordy[place % len(wordy)]
    shown = [[*lens.messages] for lens in (earlier, later)]
    for slots in shown:
        slots[cut] = shortened(slots[cut])
    if other is not None:
        one = other % len(later.messages)
        shown[1][one] = shortened(shown[1][one])
    sent = [
        UpstreamRequest(later.api, render_request(*each), model[1])
        for each in zip((earlier, later), shown, strict=True)
    ]
    return sent, shown, later


def shortened(slot):
    """Return a slot of the same role that says no more than that it was cut."""
    return SizedMessage(Message.from_text(slot.message.role, "[what stood here was cut]"), api=slot.api)


def bytes_of(slot):
    """Return the bytes of a slot."""
    return bytes(slot.raw)


@given(broken_history_strategy(), st.sampled_from(MODELS), NUMBERS, NUMBERS, st.none() | NUMBERS)
def test_what_is_not_judged_again_is_the_clients(messages, model, at, place, other):
    """Where a request is taken as judged, every rule that it breaks is one that its client's own body breaks."""
    made = two_requests(messages, model, at, place, other)
    assume(made is not None)
    sent, shown, own = made
    before = None if broken(sent[0]) else make_checked_request(sent[0], shown[0])
    if is_already_checked(sent[1], shown[1], own, before):
        assert broken(sent[1]) <= broken(replace(sent[1], body=own.body))


@given(conversation_strategy(), st.sampled_from(MODELS), NUMBERS, NUMBERS)
def test_a_sound_conversation_is_judged_by_what_is_new(messages, model, at, place):
    """A request that grew from one that was judged, by messages that are sound, is not judged whole again."""
    made = two_requests(messages, model, at, place)
    assume(made is not None)
    sent, shown, own = made
    assume(not broken(sent[0]) and not broken(sent[1]))
    before = make_checked_request(sent[0], shown[0])
    assume(before is not None)
    assert is_already_checked(sent[1], shown[1], own, before)
