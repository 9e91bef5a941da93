"""What may be taken as judged: the same beginning, and behind it what the client itself said, to the same model."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.engine.run.check_request import is_already_checked, make_checked_request
from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.requests.request_body import build_request_body, parse_request, render_request

API, MODEL = "anthropic", "claude-sonnet-4-5"
FIRST = [
    Message.from_text("user", "Mend the fares."),
    Message.from_text("assistant", "Which?"),
    Message.from_text("user", "All."),
]
CUT = SizedMessage(Message.from_text("user", "Mend. (cut)"), api=API)


def own(*messages):
    """Return the body of a client that says ``messages``, opened."""
    return parse_request(build_request_body(API, MODEL, [*map(SizedMessage, messages)], setup_fields={"max_tokens": 9}))


def sent(lens, *slots):
    """Return the request that shows ``slots`` in place of those of ``lens``."""
    return UpstreamRequest(API, render_request(lens, slots), MODEL)


def shown(lens, first=CUT):
    """Return the slots of ``lens`` with another first one."""
    return (first, *lens.messages[1:])


def before(first=CUT):
    """Return a request that was judged, whose first message is cut."""
    lens = own(*FIRST)
    return make_checked_request(sent(lens, *shown(lens, first)), shown(lens, first))


LATER = own(*FIRST, Message.from_text("assistant", "Done."), Message.from_text("user", "Thanks."))


def test_what_the_client_said_since_is_taken():
    """The same beginning, and the client's own words behind it."""
    assert is_already_checked(sent(LATER, *shown(LATER)), shown(LATER), LATER, before())


def test_another_beginning_is_judged_anew():
    """Of the same length even: what stands there was never looked at."""
    other = SizedMessage(Message.from_text("user", "Mend! (cut)"), api=API)
    assert not is_already_checked(sent(LATER, *shown(LATER, other)), shown(LATER, other), LATER, before())


def test_what_is_ours_behind_it_is_judged():
    """A message that the client did not say so, though it breaks no rule."""
    slots = (*shown(LATER)[:-1], SizedMessage(Message.from_text("user", "Thanks!"), api=API))
    assert not is_already_checked(sent(LATER, *slots), slots, LATER, before())


def test_other_fields_are_judged_anew():
    """A field that the client sends with another value, or one more, before its messages or behind them."""
    for field in (b'"max_tokens":8', b'"max_tokens":9,"top_k":4'):
        lens = parse_request(LATER.body.replace(b'"max_tokens":9', field))
        assert not is_already_checked(sent(lens, *shown(lens)), shown(lens), lens, before())


def test_another_model_has_other_rules():
    """Where the address names the model, the body does not tell."""
    request = sent(LATER, *shown(LATER))
    assert not is_already_checked(replace(request, model="claude-opus-5-5"), shown(LATER), LATER, before())


def test_what_breaks_a_rule_is_judged_whole():
    """The client's own words too: what can be mended is, where something of ours goes out beside it."""
    lens = own(*FIRST, Message.from_text("assistant", "Done."), Message("user", (Text(" "),)))
    assert not is_already_checked(sent(lens, *shown(lens)), shown(lens), lens, before())


def test_a_batch_of_results_is_looked_at_with_its_calls():
    """Results alone would break a rule: what they answer is looked at with them, as far back as it stands."""
    calls = tuple(ToolCall(f"toolu_{number}", "read", "{}") for number in range(3))
    results = tuple(ToolResult(call.id, content=(Text("x"),), name=call.name) for call in calls)
    first = own(Message.from_text("user", "Read."), Message("assistant", calls), Message("user", results))
    lens = own(
        *[slot.message for slot in first.messages],
        Message.from_text("assistant", "Read."),
        Message.from_text("user", "Go on."),
    )
    known = make_checked_request(sent(first, *shown(first)), shown(first))
    assert is_already_checked(sent(lens, *shown(lens)), shown(lens), lens, known)


def test_what_ends_with_words_of_ours_is_nothing_to_go_on_from():
    """Its last message stands in no client's body, so that nothing shows where the client's words go on."""
    lens = own(*FIRST)
    slots = (*lens.messages[:-1], CUT)
    assert make_checked_request(sent(lens, *slots), slots) is None
