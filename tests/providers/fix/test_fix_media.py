"""Media in a request body that are not what they say, or larger than the API takes."""

from __future__ import annotations

import json
from base64 import b64encode
from io import BytesIO

import pytest
from PIL import Image

from holdfast.messages.size.image_size import read_image_size
from holdfast.providers.fix.fix_request import fix_request

JPEG = b64encode(b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\0\0\x01\0\x01\0\0").decode()
PAGE = b64encode(b"<html><head><title>404</title></head></html>").decode()


def build_anthropic_image(data, mime="image/png"):
    return {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}


def build_picture(width):
    output = BytesIO()
    Image.new("RGB", (width, 12), "navy").save(output, "PNG")
    return b64encode(output.getvalue()).decode()


def fix(*messages):
    result = fix_request(json.dumps({"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": messages}).encode())
    assert result.is_valid
    return json.loads(result.body)["messages"], [found.why for found in result.fixes]


def test_fix_request_corrects_the_declared_type():
    """The bytes tell the type; the report names both."""
    [message], report = fix({"role": "user", "content": [build_anthropic_image(JPEG)]})
    assert message["content"] == [build_anthropic_image(JPEG, "image/jpeg")]
    assert report == ["declared image/png, but the bytes are image/jpeg: the type is corrected"]


def test_fix_request_puts_a_line_in_place_of_an_error_page():
    """In a tool result too; the words beside it stay."""
    call = {"type": "tool_use", "id": "t1", "name": "camera", "input": {}}
    words = {"type": "text", "text": "taken at noon"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [words, build_anthropic_image(PAGE)]}
    messages, report = fix(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    )
    line = "[image left out: declared image/png, but the bytes are an HTML page]"
    assert messages[2]["content"][0]["content"] == [words, {"type": "text", "text": line}]
    assert any(line in why for why in report)


@pytest.mark.parametrize(("width", "count"), [(8_200, 1), (2_300, 21)])
def test_fix_request_scales_oversized_images(width, count):
    """With Pillow no image is lost: over 8,000 pixels, or over 2,000 where there are more than 20."""
    shot = {"role": "user", "content": [build_anthropic_image(build_picture(width))]}
    messages, report = fix(*[shot, {"role": "assistant", "content": "So."}] * count)
    images = [block for message in messages[::2] for block in message["content"]]
    assert {max(read_image_size(block["source"]["data"])) for block in images} == {2_000}
    assert len(report) == count
    assert "scaled down to at most 2,000 pixels a side" in report[0]
