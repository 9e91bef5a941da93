"""Images that are too large are scaled down once, and the recorded image is what later requests show."""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from io import BytesIO

import pytest
from msgspec.structs import replace
from PIL import Image

from holdfast.config import get_target
from holdfast.messages.message import Message, collect_media_in_messages
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size import scale_image
from holdfast.messages.size.image_size import read_image_size
from holdfast.messages.size.scale_image import scale_down_image
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.pipeline import Policy, plan_request
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entry
from holdfast.state.view import build_projection

TARGET = get_target("anthropic", "claude-sonnet-4-5", window=200_000)


def build_image(width, height=40, image_format="PNG"):
    """Return an image that Pillow can read, blank but for one corner."""
    output = BytesIO()
    image = Image.new("RGB", (width, height), "white")
    image.putpixel((1, 1), (200, 30, 30))
    image.save(output, image_format)
    data = b64encode(output.getvalue()).decode()
    return Media("image", f"image/{image_format.lower()}", len(output.getvalue()), "shot", data, form="base64")


def append_messages(state, *messages):
    for message in messages:
        state = apply_entry(state, Entry("", None, MessageEntry(build_sized_message(message))))
    return state


def list_shown_images(plan):
    return collect_media_in_messages(*[sized.message for sized in build_projection(plan.state)])


def build_screenshots(count, width):
    messages = [Message.from_text("user", "look")]
    for number in range(count):
        call_id = f"c{number}"
        messages.append(Message("assistant", (ToolCall(call_id, "shot"),)))
        messages.append(Message("tool", (ToolResult(call_id, "shot", (build_image(width, 40 + number),)),)))
    return messages


@pytest.mark.parametrize("image_format", ["PNG", "JPEG", "GIF", "WEBP"])
def test_media_stage_scales_oversized_images(image_format):
    """An image over the pixels of the API is shown smaller, under the type of its new bytes; the notice says so."""
    state = append_messages(ConversationState(), Message("user", (Text("see"), build_image(8_400, 40, image_format))))
    plan = plan_request(state, TARGET, Policy())
    (image,) = list_shown_images(plan)
    assert max(read_image_size(image.source)) == 2_000
    assert Image.open(BytesIO(b64decode(image.source))).get_format_mimetype() == image.mime
    assert ["scaled 1 down" in notice.why for notice in plan.notices if notice.rule == "media"] == [True]


def test_media_stage_records_the_scaled_image():
    """The edit holds the image, so planning again neither scales nor changes anything."""
    state = append_messages(ConversationState(), Message("user", (Text("see"), build_image(8_400))))
    plan = plan_request(state, TARGET, Policy())
    again = plan_request(plan.state, TARGET, Policy())
    assert again.record == ()
    assert list_shown_images(again) == list_shown_images(plan)


def test_media_stage_scales_images_over_the_bytes_of_the_api():
    """The bytes of one image count too."""
    dialect = replace(TARGET.dialect, max_image_bytes=3_000)
    state = append_messages(ConversationState(), Message("user", (build_noise(),)))
    plan = plan_request(state, replace(TARGET, dialect=replace(dialect, large_image_pixels=20)), Policy())
    (image,) = list_shown_images(plan)
    assert len(image.source) <= 3_000


def build_noise():
    output = BytesIO()
    Image.effect_noise((100, 100), 90).save(output, "PNG")
    data = b64encode(output.getvalue()).decode()
    return Media("image", "image/png", len(output.getvalue()), "", data, form="base64")


def test_media_stage_scales_large_images_where_there_are_many():
    """With more than 20 images none may be over 2,000 pixels a side: they are scaled, and none is replaced."""
    state = append_messages(ConversationState(), *build_screenshots(22, 2_200))
    plan = plan_request(state, TARGET, Policy().with_settings(media={"max_count": 0}))
    images = list_shown_images(plan)
    assert len(images) == 22
    assert {max(read_image_size(image.source)) for image in images} == {2_000}


def test_media_stage_replaces_damaged_images_by_a_line():
    """What Pillow cannot read cannot be scaled."""
    image = build_image(8_400)
    damaged = replace(image, source=image.source[: len(image.source) // 2 // 4 * 4])
    state = append_messages(ConversationState(), Message("user", (Text("see"), damaged)))
    plan = plan_request(state, TARGET, Policy())
    assert list_shown_images(plan) == []


def test_media_stage_names_the_extra_without_pillow(monkeypatch):
    """Without Pillow a line stands for the image, and the notice says what to install."""
    monkeypatch.setattr(scale_image, "can_scale_images", lambda: False)
    monkeypatch.setattr("holdfast.planning.stages.media.can_scale_images", lambda: False)
    state = append_messages(ConversationState(), Message("user", (Text("see"), build_image(8_400))))
    plan = plan_request(state, TARGET, Policy())
    assert list_shown_images(plan) == []
    assert any("install the extra `images`" in notice.why for notice in plan.notices)


def test_scale_down_image_is_deterministic():
    """Equal bytes give equal bytes."""
    image = build_image(3_000, 3_000, "JPEG")
    assert scale_down_image(image.source, 900) == scale_down_image(image.source, 900)


def test_scale_down_image_refuses_images_that_claim_to_be_huge():
    """A few bytes can claim billions of pixels; such an image is not decoded."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 60_000, 60_000)
    assert read_image_size(b64encode(head).decode()) == (60_000, 60_000)
    assert scale_down_image(b64encode(head + b"\x08\x02\0\0\0").decode(), 900) is None
