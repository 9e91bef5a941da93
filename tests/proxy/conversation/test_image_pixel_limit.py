"""Images of more pixels than the API accepts are replaced by a line, so that the request is not refused."""

from __future__ import annotations

import json
import struct
from base64 import b64encode

import anyio


def make_image_block(width):
    """Return an image block whose header gives this width."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, 10)
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(head).decode()}
    return {"type": "image", "source": source}


def test_proxy_replaces_an_image_with_too_many_pixels(open_client, make_chat, make_strict_upstream):
    """Only the oversized image becomes a line before the send, and the next request begins with the same bytes."""
    upstream, chat = make_strict_upstream(), make_chat("anthropic")
    small, line = make_image_block(8_000), {"type": "text", "text": "[Attached image/png]"}

    async def scenario():
        async with open_client(upstream) as web:
            await chat.send_turn(web, "hi")
            chat.messages.append(
                {"role": "user", "content": [{"type": "text", "text": "look"}, make_image_block(8_001), small]}
            )
            shown = await web.post(chat.path, chat.body())
            chat.add_answer(shown.content)
            return shown.status_code, (await chat.send_turn(web, "and?")).status_code

    assert (anyio.run(scenario), len(upstream.bodies)) == ((200, 200), 3)
    first, second = (json.loads(body)["messages"] for body in upstream.bodies[1:])
    assert first[-1]["content"] == [{"type": "text", "text": "look"}, line, small]
    assert second[: len(first)] == first
