"""Keep-alives: the official clients of every API skip them."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from holdfast.engine.upstream.upstream import UpstreamRequest
from holdfast.providers.registry import API_NAMES
from holdfast.proxy.http.client_response import get_keep_alive_bytes
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.upstream import ProviderUpstream

COMMENT = b": keep-alive\n\n"


def test_keep_alive_bytes_exist_only_for_streams():
    """Every API has a keep-alive for streams, and an unstreamed answer has none because it would corrupt it."""
    assert all(get_keep_alive_bytes(api, stream=True) for api in API_NAMES)
    assert not any(get_keep_alive_bytes(api, stream=False) for api in (*API_NAMES, ""))
    assert get_keep_alive_bytes("", stream=True) == b""


def make_client(api, keep_alive):
    """Return an HTTP client whose every answer of a strict provider has keep-alives before it."""
    upstream = ProviderUpstream(Provider())

    async def answer(sent):
        async with upstream.send(sent) as reply:
            return await reply.read_body()

    def respond(request):
        body = anyio.run(answer, UpstreamRequest(api, request.content, STRICTEST_MODELS[api], stream=True))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=keep_alive * 2 + body)

    return httpx2.Client(transport=httpx2.MockTransport(respond))


def ask_anthropic(http):
    from anthropic import Anthropic

    with Anthropic(api_key="any", http_client=http) as client:
        fields = {
            "model": STRICTEST_MODELS["anthropic"],
            "max_tokens": 50,
            "messages": [{"role": "user", "content": "hello"}],
        }
        with client.messages.stream(**fields) as stream:
            return stream.get_final_text()


def ask_openai_chat(http):
    from openai import OpenAI

    with OpenAI(api_key="any", http_client=http) as client:
        fields = {
            "model": STRICTEST_MODELS["openai-chat"],
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
        }
        chunks = list(client.chat.completions.create(**fields))
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def ask_openai_responses(http):
    from openai import OpenAI

    with (
        OpenAI(api_key="any", http_client=http) as client,
        client.responses.stream(model=STRICTEST_MODELS["openai-responses"], input="hello") as stream,
    ):
        return stream.get_final_response().output_text


def ask_gemini(http):
    from google import genai

    with genai.Client(api_key="any", http_options=genai.types.HttpOptions(httpx_client=http)) as client:
        chunks = client.models.generate_content_stream(model=STRICTEST_MODELS["gemini"], contents="hello")
        return "".join(chunk.text or "" for chunk in chunks)


ASK_BY_API = {
    "anthropic": ask_anthropic,
    "openai-chat": ask_openai_chat,
    "openai-responses": ask_openai_responses,
    "gemini": ask_gemini,
}


@pytest.mark.parametrize("api", API_NAMES)
def test_official_clients_skip_keep_alives(api):
    """Each vendor's SDK reads the same answer with and without keep-alives before it."""
    plain, kept = (
        ASK_BY_API[api](make_client(api, b"")),
        ASK_BY_API[api](make_client(api, get_keep_alive_bytes(api, stream=True))),
    )
    assert plain == kept
    assert kept.startswith("ok")


def test_google_client_fails_on_an_sse_comment():
    """Gemini's keep-alive is a blank line because its SDK takes a comment for broken JSON; if this test fails, it can
    be a comment.
    """
    with pytest.raises(Exception, match="keep-alive"):
        ask_gemini(make_client("gemini", COMMENT))
