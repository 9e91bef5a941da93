"""Reuse of request checks: sound requests are checked once, and no message of ours is sent unchecked."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis_strategies import broken_history_strategy, conversation_strategy
from msgspec.structs import replace

from holdfast.config import get_target
from holdfast.engine.run.check_request import is_already_checked, make_check_baseline
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.messages.message import Message
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.providers.rules.validate import validate_request

MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "gpt-5"),
    ("openai-responses", "gpt-5"),
    ("gemini", "gemini-2.5-pro"),
]
NUMBERS = st.integers(0, 30)


def parse_client_body(sized_messages, model):
    """Return the parsed body that a client of ``model`` sends for these messages."""
    return parse_request(
        build_request_body(*model, sized_messages, setup_fields={"max_tokens": 9} if model[0] == "anthropic" else {}),
        model[0],
    )


def find_broken_rules(request):
    """Return the names of the rules that a request breaks."""
    return {
        problem.rule
        for problem in validate_request(request.body, request.api, model=request.model)
        if problem.level == "error"
    }


def build_two_requests(messages, model, end_choice, cut_choice, extra_cut=None):
    """Return an earlier and a later request with one message cut, their messages, and the client's later body.

    With ``extra_cut`` one more message of the later request is cut, of any kind and at any place. Returns None where
    the body does not grow by whole messages, or where no message can be cut.
    """
    later = parse_client_body([SizedMessage(message) for message in messages if message.role != "system"], model)
    end_indexes = [index for index, slot in enumerate(later.messages) if index and slot.message.role == "assistant"]
    if not end_indexes:
        return None
    earlier = parse_request(
        render_request(later, later.messages[: end_indexes[end_choice % len(end_indexes)]]), later.api
    )
    count = len(earlier.messages)
    wordy = [index for index, slot in enumerate(earlier.messages) if not (slot.message.calls or slot.message.results)]
    if not wordy or [*map(get_raw_bytes, earlier.messages)] != [*map(get_raw_bytes, later.messages[:count])]:
        return None
    cut = wordy[cut_choice % len(wordy)]
    shown = [[*parsed.messages] for parsed in (earlier, later)]
    for slots in shown:
        slots[cut] = cut_message(slots[cut])
    if extra_cut is not None:
        extra_index = extra_cut % len(later.messages)
        shown[1][extra_index] = cut_message(shown[1][extra_index])
    sent = [
        UpstreamRequest(later.api, render_request(*each), model[1])
        for each in zip((earlier, later), shown, strict=True)
    ]
    return sent, shown, later


def cut_message(slot):
    """Return a message of the same role that only says that it was cut."""
    return SizedMessage(Message.from_text(slot.message.role, "[what stood here was cut]"), api=slot.api)


def get_raw_bytes(slot):
    """Return the raw bytes of a message."""
    return bytes(slot.raw)


@given(broken_history_strategy(), st.sampled_from(MODELS), NUMBERS, NUMBERS, st.none() | NUMBERS)
def test_is_already_checked_passes_only_errors_of_the_client_body(messages, model, end_choice, cut_choice, extra_cut):
    """Every rule that a request counted as checked breaks is also broken by the client's own body."""
    requests = build_two_requests(messages, model, end_choice, cut_choice, extra_cut)
    assume(requests is not None)
    sent, shown, client_body = requests
    checked = None if find_broken_rules(sent[0]) else make_check_baseline(sent[0], shown[0])
    if is_already_checked(sent[1], shown[1], client_body, checked, get_target(*model).dialect):
        assert find_broken_rules(sent[1]) <= find_broken_rules(replace(sent[1], body=client_body.body))


@given(conversation_strategy(), st.sampled_from(MODELS), NUMBERS, NUMBERS)
def test_is_already_checked_accepts_every_sound_continuation(messages, model, end_choice, cut_choice):
    """A request that grew from a checked one by sound messages is not checked as a whole again."""
    requests = build_two_requests(messages, model, end_choice, cut_choice)
    assume(requests is not None)
    sent, shown, client_body = requests
    assume(not find_broken_rules(sent[0]) and not find_broken_rules(sent[1]))
    checked = make_check_baseline(sent[0], shown[0])
    assume(checked is not None)
    assert is_already_checked(sent[1], shown[1], client_body, checked, get_target(*model).dialect)
