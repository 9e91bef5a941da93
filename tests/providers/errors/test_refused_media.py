"""Which image or document a refusal is about, if it is about one."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.refused_media import find_refused_media
from holdfast.providers.errors.report import ErrorReport


def build_image(data):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


ANTHROPIC = {
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "look"}, build_image("AAAA"), build_image("BBBB")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "x", "input": {"data": "no"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [build_image("CCCC")]}]},
    ]
}
CHAT = {
    "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.org/pier.png"}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,DDDD"}}]},
    ]
}
RESPONSES = {
    "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,EEEE"}]}]
}
GEMINI = {"contents": [{"parts": [{"text": "a"}, {"inline_data": {"mime_type": "image/png", "data": "FFFF"}}]}]}
NO_MEDIA = {"messages": [{"role": "user", "content": "hi"}]}

CASES = [
    (ANTHROPIC, ("messages.0.content.2.image.source.base64: The image was specified using the image/png media type, but"
     " the image appears to be a image/jpeg image"), ("BBBB",)),
    (ANTHROPIC, ("messages.2.content.0.tool_result.content.0.image.source.base64.data: Image does not match the"
     " provided media type image/png"), ("CCCC",)),
    (ANTHROPIC, "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6000000 bytes > 5242880 bytes",
     ("AAAA",)),
    (ANTHROPIC, "Could not process image", ()),
    (ANTHROPIC, "Could not process PDF", ()),
    (ANTHROPIC, ("messages.0.content.2.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png',"
     " 'image/gif' or 'image/webp'"), ("BBBB",)),
    (CHAT, ("The image data you provided does not represent a valid image. Please check your input and try again with"
     " one of the supported image formats: ['image/jpeg', 'image/png', 'image/gif', 'image/webp']."), ()),
    (CHAT, "Error while downloading https://example.org/pier.png.", ("https://example.org/pier.png",)),
    (CHAT, "Invalid 'messages[1].content[0].image_url.url'. Expected a base64-encoded data URL.", ("DDDD",)),
    (CHAT, "You uploaded an unsupported image. Please make sure your image has of one the following formats: png.", ()),
    (RESPONSES, "Invalid value for 'input[0].content[0].image_url': invalid image data", ("EEEE",)),
    (GEMINI, "Unable to process input image. Please retry or report in the troubleshooting guide", ()),
    (GEMINI, "* GenerateContentRequest.contents[0].parts[1].inline_data.mime_type: MIME type must be image/png",
     ("FFFF",)),
    (GEMINI, "Unsupported MIME type: image/jpg", ()),
]  # fmt: skip
OTHERS = [
    (NO_MEDIA, "Could not process image"),
    (ANTHROPIC, "messages.0.content.1.image.cache_control: Extra inputs are not permitted"),
    (ANTHROPIC, "messages: too many images: 101 > 100"),
    (ANTHROPIC, "messages.1.content.0.tool_use.input: Input should be a valid dictionary"),
    (ANTHROPIC, ("messages.0.content.1.image.source.base64.data: At least one of the image dimensions exceed max"
     " allowed size for many-image requests: 2000 pixels")),
    (CHAT, "No endpoints found that support image input"),
    (CHAT, "This model does not support image input"),
    (CHAT, "max_tokens is too large: 99999. This model supports at most 4096 completion tokens"),
    (CHAT, "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."),
]  # fmt: skip


def find_in(body, message, status=400):
    report = ErrorReport(status=status, body=json.dumps({"error": {"message": message}}).encode())
    return find_refused_media(report, classify_error(report).kind, json.dumps(body).encode())


@pytest.mark.parametrize(("body", "message", "sources"), CASES)
def test_find_refused_media_reads_path_and_address(body, message, sources):
    """The media that the text names by path or address; none of them if it names none."""
    assert find_in(body, message) == sources


@pytest.mark.parametrize(("body", "message"), OTHERS)
def test_find_refused_media_leaves_other_refusals_alone(body, message):
    """Other fields, the number of images, models without eyes, sizes of the prompt, requests without media."""
    assert find_in(body, message) is None


def test_find_refused_media_reads_the_parameter():
    """OpenAI names the place in ``param`` where the message does not."""
    error = {"message": "Invalid image data.", "param": "input[0].content[0].image_url", "code": "invalid_value"}
    report = ErrorReport(status=400, body=json.dumps({"error": error}).encode())
    assert find_refused_media(report, "media", json.dumps(RESPONSES).encode()) == ("EEEE",)


def test_find_refused_media_takes_no_server_error_for_a_refusal():
    """A server that is down says nothing about the image."""
    assert find_in(ANTHROPIC, "Could not process image", status=503) is None


@pytest.mark.parametrize("message", ["an image is too large", "images exceed the limit for many-image requests"])
def test_find_refused_media_reads_all_paths_that_the_details_list(message):
    """An error with a list of paths is about all of them, whatever it says, also inside tool results."""
    paths = ["messages.0.content.1", "messages.2.content.0.content.0"]
    details = {"error_code": "image_dimensions_too_large", "max_side_length_pixels": 2000, "paths": paths}
    error = {"type": "invalid_request_error", "message": message, "details": details}
    report = ErrorReport(status=400, body=json.dumps({"type": "error", "error": error}).encode())
    body = json.dumps(ANTHROPIC).encode()
    assert find_refused_media(report, classify_error(report).kind, body) == ("AAAA", "CCCC")
    details["paths"] = ["messages.9.content.1", 3]
    damaged = ErrorReport(status=400, body=json.dumps({"type": "error", "error": error}).encode())
    assert not find_refused_media(damaged, "media", body)
