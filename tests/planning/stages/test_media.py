"""Limits of media: which attachments are replaced, and by what."""

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

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)
POLICY = Policy().with_settings(media={"max_count": 6, "max_bytes": 6_000})


def build_picture(size=300, name=""):
    return Media("image", "image/png", size, name, "A" * (size * 4 // 3 // 4 * 4))


def build_screenshot(width, height=10):
    """Return an image of ``width`` by ``height`` pixels."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height)
    return Media("image", "image/png", len(head), "shot.png", b64encode(head).decode())


def build_user_message(*media, text="look"):
    return Message("user", (Text(text), *media))


def build_read(id_, *media):
    """Return a call and its result with ``media``."""
    return [Message("assistant", (ToolCall(id_, "read"),)), Message("tool", (ToolResult(id_, "read", media),))]


def append_messages(state, *messages):
    for message in messages:
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
    return state


def count_shown_media(plan):
    """Return how many media each message shows."""
    return [len(collect_media_in_messages(sized.message)) for sized in build_projection(plan.state)]


def test_media_stage_keeps_all_within_the_limit():
    """As many attachments as the limit allows are sent."""
    plan = plan_request(
        append_messages(ConversationState(), *(build_user_message(build_picture()) for _ in range(6))), TARGET, POLICY
    )
    assert (plan.record, count_shown_media(plan)) == ((), [1] * 6)


def test_media_stage_drops_the_oldest_seen_media():
    """One too many: the oldest seen media go until half of the limit is free, and the next three break nothing."""
    plan = plan_request(
        append_messages(ConversationState(), *(build_user_message(build_picture()) for _ in range(6))), TARGET, POLICY
    )
    over_limit = plan_request(append_messages(plan.state, build_user_message(build_picture())), TARGET, POLICY)
    assert count_shown_media(over_limit) == [0, 0, 0, 0, 1, 1, 1]
    for _ in range(3):
        over_limit = plan_request(
            append_messages(over_limit.state, build_user_message(build_picture())), TARGET, POLICY
        )
        assert over_limit.record == ()
    assert sum(count_shown_media(over_limit)) == 6


def test_media_stage_shows_fewer_images_beside_a_large_one():
    """The Messages API takes 20 images if one has over 2,000 pixels a side: the oldest go, and the new one is shown."""
    small, large = build_screenshot(2_000), build_screenshot(2_001)
    plan = plan_request(
        append_messages(ConversationState(), *(build_user_message(small) for _ in range(30))), TARGET, Policy()
    )
    assert (plan.record, count_shown_media(plan)) == ((), [1] * 30)
    over_limit = plan_request(append_messages(plan.state, *build_read("a", large)), TARGET, Policy())
    assert sum(count_shown_media(over_limit)) <= 20
    assert count_shown_media(over_limit)[-1] == 1
    assert "20 images where one is large" in over_limit.record[0].why
    assert "[Attached image/png: shot.png]" in build_projection(over_limit.state)[0].message.text
    next_plan = plan_request(append_messages(over_limit.state, *build_read("b", large)), TARGET, Policy())
    assert next_plan.record == ()


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-5-5"])
def test_media_stage_replaces_an_image_over_the_pixel_limit_alone(model):
    """The Messages API takes no image over 8,000 pixels a side: a line replaces it at once, whoever sent it, and only
    it.
    """
    target = get_target("anthropic", model)
    small, large = build_screenshot(8_000), build_screenshot(9, 8_001)
    messages = [
        build_user_message(small),
        *build_read("a", Text("two"), small, large),
        Message.from_text("assistant", "so"),
        build_user_message(small, large),
    ]
    new_plan = plan_request(append_messages(ConversationState(), *messages), target)
    assert count_shown_media(new_plan) == [1, 0, 1, 0, 1]
    shown = [sized.message for sized in build_projection(new_plan.state)]
    assert shown[2].results[0].content == (Text("two"), small, Text("[Attached image/png: shot.png]"))
    assert shown[-1].parts == (Text("look"), small, Text("[Attached image/png: shot.png]"))
    assert new_plan.after == plan_request(new_plan.state, target).after
    assert plan_request(new_plan.state, target).record == ()


def test_media_step_drops_only_the_oversized_image():
    """When the provider refuses media sent before the limit was known, the oversized image goes and the others stay."""
    small, large = build_screenshot(8_000), build_screenshot(9, 8_001)
    lenient = replace(TARGET, dialect=replace(TARGET.dialect, max_image_pixels=10**9))
    sent = plan_request(
        append_messages(
            ConversationState(),
            build_user_message(small),
            build_user_message(small, large),
            *build_read("a", large, small),
        ),
        lenient,
    )
    assert (count_shown_media(sent), sent.record) == ([1, 2, 0, 2], ())
    assert count_shown_media(plan_request(sent.state, TARGET, inputs=PlanInputs(overflow_step="media"))) == [1, 1, 0, 1]


def test_media_stage_applies_the_pixel_limit_of_the_target():
    """An image that another model saw is replaced for the model that takes none of its size."""
    large = build_screenshot(9, 8_001)
    gemini = plan_request(
        append_messages(
            ConversationState(),
            build_user_message(large),
            Message.from_text("assistant", "so"),
            build_user_message(build_picture()),
        ),
        GEMINI_TARGET,
    )
    assert count_shown_media(gemini) == [1, 0, 1]
    assert count_shown_media(plan_request(gemini.state, TARGET)) == [0, 0, 1]


def test_media_stage_counts_documents_and_media_in_results():
    """Documents and media inside results are media; beside the replacing line a result keeps its text."""
    document = Media("document", "application/pdf", 900, "spec.pdf", "A" * 1_200)
    messages = [
        build_user_message(document),
        *build_read("a", Text("two"), build_picture(name="a.png"), build_picture()),
        *(build_user_message(build_picture()),) * 3,
    ]
    plan = plan_request(append_messages(ConversationState(), *messages), TARGET, POLICY)
    assert plan.record == ()
    over_limit = plan_request(
        append_messages(plan.state, Message.from_text("assistant", "so"), build_user_message(build_picture())),
        TARGET,
        POLICY,
    )
    shown = [sized.message for sized in build_projection(over_limit.state)]
    assert shown[0].parts == (Text("look"), Text("[Attached application/pdf: spec.pdf]"))
    texts = [part.text for part in shown[2].results[0].content]
    assert texts == ["two", "[Attached image/png: a.png]", "[Attached image/png]"]
    assert sum(count_shown_media(over_limit)) == 3
    assert plan_request(over_limit.state, TARGET, POLICY).record == ()


def test_media_stage_drops_unanswered_media_last():
    """In a refused request the media that a model has read go first, then the oldest of the unread."""
    calls = Message("assistant", tuple(ToolCall(f"c{number}", "read") for number in range(5)))
    results = Message("tool", tuple(ToolResult(f"c{number}", "read", (build_picture(),)) for number in range(5)))
    messages = [
        Message.from_text("user", "look"),
        *build_read("a", build_picture(), build_picture()),
        Message.from_text("assistant", "so"),
        calls,
        results,
    ]
    refused_plan = plan_request(
        append_messages(ConversationState(), *messages), TARGET, POLICY.with_settings(media={"max_count": 9})
    )
    assert count_shown_media(refused_plan) == [0, 0, 2, 0, 0, 5]
    second_plan = plan_request(refused_plan.state, TARGET, POLICY.with_settings(media={"max_count": 4}))
    assert count_shown_media(second_plan) == [0, 0, 0, 0, 0, 4]


def test_media_stage_limits_bytes_too():
    """Few but large media are over the limit as well."""
    plan = plan_request(
        append_messages(
            ConversationState(), build_user_message(build_picture(2_500)), build_user_message(build_picture(2_500))
        ),
        TARGET,
        POLICY,
    )
    assert count_shown_media(plan) == [1, 1]
    over_limit = plan_request(append_messages(plan.state, build_user_message(build_picture(2_500))), TARGET, POLICY)
    assert count_shown_media(over_limit) == [0, 0, 1]


def test_media_stage_keeps_the_newest_user_message():
    """The media of the newest user message stay even over a limit; others make room for them."""
    plan = plan_request(
        append_messages(ConversationState(), build_user_message(*[build_picture()] * 7)), TARGET, POLICY
    )
    assert count_shown_media(plan) == [7]
    messages = [
        build_user_message(*[build_picture()] * 6),
        *build_read("a", build_picture(), build_picture()),
        *build_read("b", build_picture()),
    ]
    plan = plan_request(append_messages(ConversationState(), *messages), TARGET, POLICY)
    assert count_shown_media(plan) == [6, 0, 0, 0, 0]
    seen = plan_request(
        append_messages(plan.state, Message.from_text("assistant", "so"), *build_read("c", build_picture())),
        TARGET,
        POLICY,
    )
    assert sum(count_shown_media(seen)) == 6
    assert count_shown_media(seen)[0] == 6


KNOWN_MODELS = [
    ("anthropic", "claude-sonnet-4-5"),
    ("openai-chat", "gpt-5.1"),
    ("openai-responses", "gpt-5.1"),
    ("gemini", "gemini-2.5-flash"),
    ("anthropic", "glm-9"),
    ("openai-chat", "local-7b"),
]


ROOMY_TARGET = get_target("anthropic", "claude-sonnet-4-5", window=2_000_000)


@pytest.mark.parametrize(("api", "model"), KNOWN_MODELS)
def test_media_stage_keeps_what_the_api_accepts(api, model):
    """Nothing is removed unless its provider is known to refuse it: 100 images, or a document of 15 MB."""
    paper = Media("document", "application/pdf", 14_000_000, "spec.pdf", "A" * 18_666_668)
    policy = Policy().with_settings(compaction={"large_trigger_share": 1.0})
    for messages in (
        [build_user_message(build_picture())] * 100,
        [build_user_message(paper)],
        [build_user_message(paper), Message.from_text("assistant", "so"), build_user_message()],
    ):
        target = get_target(api, model, window=2_000_000)
        target = replace(target, dialect=replace(target.dialect, merges_same_role=False))
        plan = plan_request(append_messages(ConversationState(), *messages), target, policy)
        assert (plan.record, plan.normalization, plan.notices) == ((), (), ())


@pytest.mark.parametrize(("api", "model"), [("openai-chat", "local-7b"), ("anthropic", "glm-9")])
def test_media_stage_assumes_no_limit_for_an_unknown_server(api, model):
    """No limit is assumed for an unknown server; it reports itself what it does not take."""
    target = get_target(api, model, window=10_000_000, trusts_client=True)
    plan = plan_request(
        append_messages(ConversationState(), *[build_user_message(build_picture())] * 1_500), target, Policy()
    )
    assert (plan.record, sum(count_shown_media(plan))) == ((), 1_500)


def test_media_stage_reports_what_it_drops():
    """Over the known limit of the API the oldest go, and a notice says how many and what the limit is."""
    answered_images = [
        message
        for _ in range(101)
        for message in (build_user_message(build_picture()), Message.from_text("assistant", "so"))
    ]
    plan = plan_request(
        append_messages(ConversationState(), *answered_images, build_user_message()), ROOMY_TARGET, Policy()
    )
    [(rule, why)] = [(message.rule, message.why) for message in plan.notices]
    assert (rule, why.split("; ")) == (
        "media",
        [
            "the request has 101 attachments, 101 images, 30,300 bytes",
            "at most 100 images, 33,554,432 bytes are sent",
            "replaced 1 by a line each",
        ],
    )
    assert sum(count_shown_media(plan)) == 100


def test_media_stage_leaves_the_newest_message_to_the_provider():
    """More media in the newest message than the API takes are sent; once refused, the oldest of them go."""
    state = append_messages(
        ConversationState(),
        build_user_message(build_picture()),
        Message.from_text("assistant", "so"),
        build_user_message(*[build_picture()] * 101),
    )
    plan = plan_request(state, ROOMY_TARGET, Policy())
    assert (count_shown_media(plan), plan.normalization, [notice.rule for notice in plan.notices]) == (
        [1, 0, 101],
        (),
        ["media"],
    )
    pressed = plan_request(plan.state, ROOMY_TARGET, Policy(), PlanInputs(overflow_step="media"))
    assert (count_shown_media(pressed), pressed.normalization) == ([0, 0, 100], ())


def test_media_stage_never_compacts_the_newest_images():
    """Images estimated above the window stay until the provider refuses them, since only the provider knows."""
    state = append_messages(
        ConversationState(),
        build_user_message(),
        Message.from_text("assistant", "so"),
        build_user_message(*[build_picture()] * 99),
    )
    plan = plan_request(state, replace(TARGET, limits=replace(TARGET.limits, window=100_000)), Policy())
    assert count_shown_media(plan)[-1] == 99


@pytest.mark.parametrize(("images", "size", "shown_count"), [(2, 20_000_000, 2), (100, 1_300, 3), (100, 20_000_000, 6)])
def test_media_stage_applies_the_lower_of_two_limits(images, size, shown_count):
    """If the API takes less than the policy, its limit counts; of bytes, what the text beside the media leaves."""
    target = replace(TARGET, dialect=replace(TARGET.dialect, max_images=images, max_bytes=size))
    plan = plan_request(
        append_messages(ConversationState(), *(build_user_message(build_picture()) for _ in range(9))), target, POLICY
    )
    assert sum(count_shown_media(plan)) == shown_count


GEMINI_TARGET = get_target("gemini", "gemini-3-pro")
parts = st.sampled_from(
    [Thinking("hm", ProviderSignature("gemini", "", "s")), Text("so"), ToolCall("c", "draw"), build_picture(), "result"]
)


@given(st.lists(parts, max_size=6), st.sets(st.integers(0, 5)))
def test_drop_shown_media_finds_parts_after_earlier_edits(answer_parts, dropped):
    """Whatever parts of an answer went before, exactly the parts that still show media are replaced."""
    answer_parts = [
        ToolResult("r", "read", (Text("a"), build_picture())) if one == "result" else one for one in answer_parts
    ]
    dropped = sorted(index for index in dropped if index < len(answer_parts))
    decision = DecisionEntry(tuple(Edit(Span(1, 2, index)) for index in dropped))
    state = append_messages(
        ConversationState(),
        build_user_message(),
        Message("assistant", tuple(answer_parts)),
        build_user_message(text="on"),
    )
    state = apply_entry(state, Entry("d", None, decision))
    plan = plan_request(state, GEMINI_TARGET, Policy(stages=(("media", drop_shown_media),)))
    before, after = ([*build_projection(one)[1].message.parts] for one in (state, plan.state))
    assert len(before) == len(answer_parts) - len(dropped)
    assert not collect_media_in_messages(build_projection(plan.state)[1].message)
    shows = [isinstance(message, Media | ToolResult) for message in before]
    assert [one for one, has in zip(after, shows, strict=True) if not has] == [
        one for one, has in zip(before, shows, strict=True) if not has
    ]


def test_drop_shown_media_finds_a_picture_after_dropped_thinking():
    """In a Gemini answer whose signed thinking was dropped the picture is still found."""
    answer = Message(
        "assistant", (Thinking("hm", ProviderSignature("gemini", "", "s")), Text("see"), build_picture(name="a.png"))
    )
    state = append_messages(ConversationState(), build_user_message(), answer, build_user_message(text="on"))
    unsigned_state = plan_request(state, GEMINI_TARGET, Policy(stages=(("unseal", drop_signed_parts),))).state
    plan = plan_request(unsigned_state, GEMINI_TARGET, Policy(stages=(("media", drop_shown_media),)))
    assert build_projection(plan.state)[1].message.parts == (Text("see"), Text("[Attached image/png: a.png]"))


def test_drop_shown_media_keeps_unseen_media_until_last():
    """After a refusal older pictures go before unread ones: the newest of a tool, and the user's."""
    policy = Policy(stages=(("media", drop_shown_media),))
    state = append_messages(
        ConversationState(),
        build_user_message(),
        *build_read("a", build_picture()),
        build_user_message(build_picture()),
        *build_read("b", build_picture()),
        *build_read("c", build_picture()),
    )
    first_plan = plan_request(state, GEMINI_TARGET, policy)
    assert count_shown_media(first_plan) == [0, 0, 0, 1, 0, 0, 0, 1]
    second_plan = plan_request(first_plan.state, GEMINI_TARGET, policy)
    assert sum(count_shown_media(second_plan)) == 0
