"""Budgets of media: which give way, and to what."""

from __future__ import annotations

import struct
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast import Policy
from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Media, ProviderSignature, Text, Thinking, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages.media import drop_shown_media
from holdfast.recovery.signatures import drop_signed_parts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span
from holdfast.state.entries import DecisionEntry, Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.target import PlanInputs
from holdfast.state.view import build_projection

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
POLICY = Policy().with_settings(media={"max_count": 6, "max_bytes": 6_000})


def picture(size=300, name=""):
    return Media("image", "image/png", size, name, "A" * (size * 4 // 3))


def screenshot(width, height=10):
    """Return an image that is so many pixels wide and high."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    return Media("image", "image/png", len(head), "shot.png", b64encode(head).decode())


def show(*media, text="look"):
    return Message("user", (Text(text), *media))


def read(id_, *media):
    """Return a call and a result that holds media."""
    return [Message("assistant", (ToolCall(id_, "read"),)), Message("tool", (ToolResult(id_, "read", media),))]


def grown(branch, *said):
    for one in said:
        branch = apply_entry(branch, Entry("", None, MessageEntry(build_sized_message(one))))
    return branch


def held(plan):
    """Return how many media each message shows."""
    return [len(collect_media_in_messages(slot.message)) for slot in build_projection(plan.state)]


def test_within_the_budget_all_stay():
    """As many as the budget says are sent."""
    plan = plan_request(grown(ConversationState(), *(show(picture()) for _ in range(6))), WHERE, POLICY)
    assert (plan.record, held(plan)) == ((), [1] * 6)


def test_the_oldest_that_were_seen_make_room():
    """One too many: the oldest seen go until half of the budget is free, and the next three break nothing."""
    plan = plan_request(grown(ConversationState(), *(show(picture()) for _ in range(6))), WHERE, POLICY)
    over = plan_request(grown(plan.state, show(picture())), WHERE, POLICY)
    assert held(over) == [0, 0, 0, 0, 1, 1, 1]
    for _ in range(3):
        over = plan_request(grown(over.state, show(picture())), WHERE, POLICY)
        assert over.record == ()
    assert sum(held(over)) == 6


def test_fewer_images_go_where_one_is_large():
    """The Messages API takes 20 images if one has over 2,000 pixels a side: the oldest go, and what is new is shown."""
    small, large = screenshot(2_000), screenshot(2_001)
    plan = plan_request(grown(ConversationState(), *(show(small) for _ in range(30))), WHERE, Policy())
    assert (plan.record, held(plan)) == ((), [1] * 30)
    over = plan_request(grown(plan.state, *read("a", large)), WHERE, Policy())
    assert sum(held(over)) <= 20
    assert held(over)[-1] == 1
    assert "20 images where one is large" in over.record[0].why
    assert "[Attached image/png: shot.png]" in build_projection(over.state)[0].message.text
    again = plan_request(grown(over.state, *read("b", large)), WHERE, Policy())
    assert again.record == ()


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-5-5"])
def test_an_image_of_too_many_pixels_gives_way_alone(model):
    """The Messages API takes no image over 8,000 pixels a side: it is a line at once, whoever shows it, alone."""
    where = get_target("anthropic", model)
    small, large = screenshot(8_000), screenshot(9, 8_001)
    said = [
        show(small),
        *read("a", Text("two"), small, large),
        Message.from_text("assistant", "so"),
        show(small, large),
    ]
    made = plan_request(grown(ConversationState(), *said), where)
    assert held(made) == [1, 0, 1, 0, 1]
    shown = [slot.message for slot in build_projection(made.state)]
    assert shown[2].results[0].content == (Text("two"), small, Text("[Attached image/png: shot.png]"))
    assert shown[-1].parts == (Text("look"), small, Text("[Attached image/png: shot.png]"))
    assert made.after == plan_request(made.state, where).after
    assert plan_request(made.state, where).record == ()


def test_a_refused_image_of_too_many_pixels_takes_no_other_along():
    """What went up before it was known: where the provider refuses media, it goes and the others stay."""
    small, large = screenshot(8_000), screenshot(9, 8_001)
    lenient = replace(WHERE, dialect=replace(WHERE.dialect, max_image_pixels=10**9))
    sent = plan_request(grown(ConversationState(), show(small), show(small, large), *read("a", large, small)), lenient)
    assert (held(sent), sent.record) == ([1, 2, 0, 2], ())
    assert held(plan_request(sent.state, WHERE, inputs=PlanInputs(overflow_step="media"))) == [1, 1, 0, 1]


def test_a_limit_of_pixels_counts_where_it_is_known():
    """Another model's answers saw the image; the model that takes none of its size is not shown it."""
    large = screenshot(9, 8_001)
    gemini = plan_request(
        grown(ConversationState(), show(large), Message.from_text("assistant", "so"), show(picture())), GEMINI
    )
    assert held(gemini) == [1, 0, 1]
    assert held(plan_request(gemini.state, WHERE)) == [0, 0, 1]


def test_documents_and_results_count():
    """Documents and media inside results are media; beside the line that stays, a result keeps its words."""
    document = Media("document", "application/pdf", 900, "spec.pdf", "A" * 1_200)
    said = [show(document), *read("a", Text("two"), picture(name="a.png"), picture()), *(show(picture()),) * 3]
    plan = plan_request(grown(ConversationState(), *said), WHERE, POLICY)
    assert plan.record == ()
    over = plan_request(grown(plan.state, Message.from_text("assistant", "so"), show(picture())), WHERE, POLICY)
    shown = [slot.message for slot in build_projection(over.state)]
    assert shown[0].parts == (Text("look"), Text("[Attached application/pdf: spec.pdf]"))
    words = [part.text for part in shown[2].results[0].content]
    assert words == ["two", "[Attached image/png: a.png]", "[Attached image/png]"]
    assert sum(held(over)) == 3
    assert plan_request(over.state, WHERE, POLICY).record == ()


def test_what_nobody_answered_goes_only_as_far_as_it_must():
    """Pictures in a request that was refused were read by nobody: those that were go first, then the oldest of them."""
    calls = Message("assistant", tuple(ToolCall(f"c{number}", "read") for number in range(5)))
    results = Message("tool", tuple(ToolResult(f"c{number}", "read", (picture(),)) for number in range(5)))
    said = [
        Message.from_text("user", "look"),
        *read("a", picture(), picture()),
        Message.from_text("assistant", "so"),
        calls,
        results,
    ]
    refused = plan_request(grown(ConversationState(), *said), WHERE, POLICY.with_settings(media={"max_count": 9}))
    assert held(refused) == [0, 0, 2, 0, 0, 5]
    again = plan_request(refused.state, WHERE, POLICY.with_settings(media={"max_count": 4}))
    assert held(again) == [0, 0, 0, 0, 0, 4]


def test_bytes_count_for_themselves():
    """Few but large media are over the budget too."""
    plan = plan_request(grown(ConversationState(), show(picture(2_500)), show(picture(2_500))), WHERE, POLICY)
    assert held(plan) == [1, 1]
    over = plan_request(grown(plan.state, show(picture(2_500))), WHERE, POLICY)
    assert held(over) == [0, 0, 1]


def test_what_the_user_said_last_stays():
    """The media of the user's newest message stay, be they over a budget; others give way to them."""
    plan = plan_request(grown(ConversationState(), show(*[picture()] * 7)), WHERE, POLICY)
    assert held(plan) == [7]
    said = [show(*[picture()] * 6), *read("a", picture(), picture()), *read("b", picture())]
    plan = plan_request(grown(ConversationState(), *said), WHERE, POLICY)
    assert held(plan) == [6, 0, 0, 0, 0]
    seen = plan_request(grown(plan.state, Message.from_text("assistant", "so"), *read("c", picture())), WHERE, POLICY)
    assert sum(held(seen)) == 6
    assert held(seen)[0] == 6


KNOWN = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "gpt-5.1"),
    ("openai-responses", "gpt-5.1"),
    ("gemini", "gemini-2.5-flash"),
    ("anthropic", "glm-9"),
    ("openai-chat", "local-7b"),
]


ROOMY = get_target("anthropic", "claude-sonnet-4-5", window=2_000_000)


@pytest.mark.parametrize(("api", "model"), KNOWN)
def test_what_the_api_takes_stays(api, model):
    """Nothing is taken out of a request that its provider is not known to refuse: 100 images, a document of 15 MB."""
    paper = Media("document", "application/pdf", 14_000_000, "spec.pdf", "A" * 18_666_668)
    for said in ([show(picture())] * 100, [show(paper)], [show(paper), Message.from_text("assistant", "so"), show()]):
        where = get_target(api, model, window=2_000_000)
        where = replace(where, dialect=replace(where.dialect, merges_same_role=False))
        plan = plan_request(grown(ConversationState(), *said), where, Policy())
        assert (plan.record, plan.normalization, plan.notices) == ((), (), ())


@pytest.mark.parametrize(("api", "model"), [("openai-chat", "local-7b"), ("anthropic", "glm-9")])
def test_a_limit_that_nobody_knows_is_none(api, model):
    """Of a server that nobody knows no limit is taken for granted: it says itself what it does not take."""
    where = get_target(api, model, window=10_000_000, trusts_client=True)
    plan = plan_request(grown(ConversationState(), *[show(picture())] * 1_500), where, Policy())
    assert (plan.record, sum(held(plan))) == ((), 1_500)


def test_what_goes_is_told():
    """Over what the API is known to take the oldest go, and a notice says how many, and what is taken."""
    answered = [one for _ in range(101) for one in (show(picture()), Message.from_text("assistant", "so"))]
    plan = plan_request(grown(ConversationState(), *answered, show()), ROOMY, Policy())
    [(rule, why)] = [(one.rule, one.why) for one in plan.notices]
    assert (rule, why.split("; ")) == (
        "media",
        [
            "the request has 101 attachments, 101 images, 30,300 bytes",
            "at most 100 images, 33,554,432 bytes are sent",
            "replaced 1 by a line each",
        ],
    )
    assert sum(held(plan)) == 100


def test_the_newest_message_is_left_to_the_provider():
    """More in the newest message than the API is known to take goes out; once refused, the oldest of it give way."""
    branch = grown(ConversationState(), show(picture()), Message.from_text("assistant", "so"), show(*[picture()] * 101))
    plan = plan_request(branch, ROOMY, Policy())
    assert (held(plan), plan.normalization, [one.rule for one in plan.notices]) == ([1, 0, 101], (), ["media"])
    pressed = plan_request(plan.state, ROOMY, Policy(), PlanInputs(overflow_step="media"))
    assert (held(pressed), pressed.normalization) == ([0, 0, 100], ())


def test_what_the_user_shows_now_is_never_folded_away():
    """By our reckoning the images are more than the window; only the provider knows, and until then they stay."""
    branch = grown(ConversationState(), show(), Message.from_text("assistant", "so"), show(*[picture()] * 99))
    plan = plan_request(branch, replace(WHERE, limits=replace(WHERE.limits, window=100_000)), Policy())
    assert held(plan)[-1] == 99


@pytest.mark.parametrize(("images", "size", "left"), [(2, 20_000_000, 2), (100, 1_300, 3), (100, 20_000_000, 6)])
def test_the_lower_of_two_limits_counts(images, size, left):
    """Where the API takes less than the policy, its limit is the budget: of bytes, what the words beside leave."""
    where = replace(WHERE, dialect=replace(WHERE.dialect, max_images=images, max_bytes=size))
    plan = plan_request(grown(ConversationState(), *(show(picture()) for _ in range(9))), where, POLICY)
    assert sum(held(plan)) == left


GEMINI = get_target("gemini", "gemini-3-pro")
parts = st.sampled_from(
    [Thinking("hm", ProviderSignature("gemini", "", "s")), Text("so"), ToolCall("c", "draw"), picture(), "result"]
)


@given(st.lists(parts, max_size=6), st.sets(st.integers(0, 5)))
def test_what_went_before_shifts_no_place(said, gone):
    """Whatever parts of an answer went already, exactly what still shows media gives way, and nothing else moves."""
    said = [ToolResult("r", "read", (Text("a"), picture())) if one == "result" else one for one in said]
    gone = sorted(place for place in gone if place < len(said))
    decided = DecisionEntry(tuple(Edit(Span(1, 2, place)) for place in gone))
    branch = grown(ConversationState(), show(), Message("assistant", tuple(said)), show(text="on"))
    branch = apply_entry(branch, Entry("d", None, decided))
    plan = plan_request(branch, GEMINI, Policy(stages=(("media", drop_shown_media),)))
    before, after = ([*build_projection(one)[1].message.parts] for one in (branch, plan.state))
    assert len(before) == len(said) - len(gone)
    assert not collect_media_in_messages(build_projection(plan.state)[1].message)
    shows = [isinstance(one, Media | ToolResult) for one in before]
    assert [one for one, has in zip(after, shows, strict=True) if not has] == [
        one for one, has in zip(before, shows, strict=True) if not has
    ]


def test_a_picture_behind_thinking_that_is_left_out():
    """An answer of Gemini's: the sealed thinking went, and its picture is still found."""
    answer = Message(
        "assistant", (Thinking("hm", ProviderSignature("gemini", "", "s")), Text("see"), picture(name="a.png"))
    )
    branch = grown(ConversationState(), show(), answer, show(text="on"))
    unsealed = plan_request(branch, GEMINI, Policy(stages=(("unseal", drop_signed_parts),))).state
    plan = plan_request(unsealed, GEMINI, Policy(stages=(("media", drop_shown_media),)))
    assert build_projection(plan.state)[1].message.parts == (Text("see"), Text("[Attached image/png: a.png]"))


def test_a_picture_that_nobody_has_seen_goes_last():
    """Behind a refusal older pictures go, not those that wait for an answer: a tool's newest, and the user's."""
    policy = Policy(stages=(("media", drop_shown_media),))
    branch = grown(
        ConversationState(),
        show(),
        *read("a", picture()),
        show(picture()),
        *read("b", picture()),
        *read("c", picture()),
    )
    once = plan_request(branch, GEMINI, policy)
    assert held(once) == [0, 0, 0, 1, 0, 0, 0, 1]
    again = plan_request(once.state, GEMINI, policy)
    assert sum(held(again)) == 0
