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


def build_pdf(page_count):
    """Return a document block with a PDF of so many pages."""
    kids = b"".join(b"%d 0 obj\n<</Type/Page/Parent 2 0 R>>\nendobj\n" % (number + 3) for number in range(page_count))
    pdf = b"%%PDF-1.4\n2 0 obj\n<</Type/Pages/Count %d>>\nendobj\n%s" % (page_count, kids)
    source = {"type": "base64", "media_type": "application/pdf", "data": b64encode(pdf).decode()}
    return {"type": "document", "title": f"{page_count}.pdf", "source": source}


@pytest.mark.parametrize(("page_counts", "kept"), [((60, 30, 20), (30, 20)), ((5, 101), (5,)), ((50, 50), (50, 50))])
def test_fix_request_replaces_documents_with_too_many_pages(page_counts, kept):
    """Of PDFs that are too long together the oldest goes, of one that is too long by itself that one; a line stays."""
    blocks = [build_pdf(count) for count in page_counts]
    messages = [{"role": "user", "content": [*blocks, {"type": "text", "text": "Compare them."}]}]
    body = json.dumps({"model": "claude-haiku-4-5", "max_tokens": 9, "messages": messages}).encode()
    result = fix_request(body, "anthropic")
    assert result.is_valid, result.findings
    assert fix_request(result.body, "anthropic").body is result.body
    content = json.loads(result.body)["messages"][0]["content"]
    assert [block["title"] for block in content if block["type"] == "document"] == [f"{count}.pdf" for count in kept]
    assert len(content) == len(blocks) + 1, "a line stands for what is gone"
