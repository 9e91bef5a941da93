"""What Gemini must get back untouched through the proxy: continuation tokens, and the parts of its own tools."""

from __future__ import annotations

import json

import anyio
import httpx2

from holdfast.providers.rules.validate import validate_request
from holdfast.testing.provider import Provider, ProviderSettings

PATH = "/v1beta/models/gemini-3-pro-preview:generateContent"
QUESTION = {"role": "user", "parts": [{"text": "Write all of it."}]}


def build_answer(text, finish_reason, **fields):
    """Return an answer of Gemini's."""
    content = {"role": "model", "parts": [{"text": text}]}
    candidate = {"content": content, "finishReason": finish_reason, "index": 0, **fields}
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 4, "totalTokenCount": 13}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "gemini-3-pro-preview"}


def test_proxy_passes_a_continuation_on_as_it_came(open_client, make_upstream):
    """A client goes on by repeating its request with the token of the answer, as Google's SDK does; so it arrives."""
    answers = [build_answer("Once", "CONTINUATION", continuationToken="dG9rZW4="), build_answer(" upon", "STOP")]

    class Gemini(make_upstream):
        async def handle_async_request(self, request):
            self.bodies.append(await request.aread())
            return httpx2.Response(200, json=answers[len(self.bodies) - 1])

    upstream = Gemini(Provider(ProviderSettings(tokenizer="words")))
    bodies = [{"contents": [QUESTION]}, {"contents": [QUESTION], "continuationToken": "dG9rZW4="}]

    async def scenario():
        async with open_client(upstream) as client:
            return [await client.post(PATH, body) for body in bodies]

    replies = anyio.run(scenario)
    assert [reply.json() for reply in replies] == answers
    assert upstream.bodies == [json.dumps(body).encode() for body in bodies]


def build_turn(turn):
    """Return a question, and an answer in which Gemini used a tool of its own beside a long text."""
    call = {"toolCall": {"toolType": "GOOGLE_SEARCH_WEB", "id": f"s{turn}", "args": {"queries": [f"part {turn}"]}}}
    response = {"toolResponse": {"toolType": "GOOGLE_SEARCH_WEB", "id": f"s{turn}", "response": {"r": f"page {turn}"}}}
    text = {"text": f"Part {turn}: " + f"word{turn} " * 3_000}
    parts = [{**call, "thoughtSignature": "c2ln"}, {**response, "thoughtSignature": "c2ln"}, text]
    question = {"role": "user", "parts": [{"text": f"Request {turn}: search for part {turn}."}]}
    return [question, {"role": "model", "parts": parts}]


def test_proxy_keeps_calls_and_responses_of_server_tools_together(open_client, make_strict_upstream):
    """Past the window each request that leaves has both parts of a pair, in one content and untouched, or neither."""
    upstream = make_strict_upstream(window=32_000, tokenizer="words")
    tools = [{"googleSearch": {}}, {"functionDeclarations": [{"name": "ls"}]}]
    fields = {"tools": tools, "toolConfig": {"includeServerSideToolInvocations": True}}
    contents, requests = [], []
    for turn in range(14):
        question, answer = build_turn(turn)
        contents.append(question)
        requests.append({"contents": [*contents], **fields})
        contents.append(answer)

    async def scenario():
        async with open_client(upstream) as client:
            return [await client.post(PATH, body) for body in requests]

    replies = anyio.run(scenario)
    assert {reply.status_code for reply in replies} == {200}
    known_parts = [part for content in contents for part in content["parts"] if "text" not in part]
    for body in upstream.bodies:
        findings = validate_request(body, "gemini", model="gemini-3-pro-preview")
        assert [finding for finding in findings if finding.rule == "gemini.server-side-pair"] == []
        sent_parts = [part for content in json.loads(body)["contents"] for part in content["parts"]]
        pairs = [part for part in sent_parts if "toolCall" in part or "toolResponse" in part]
        assert all(part in known_parts for part in pairs)
    assert len(json.loads(upstream.bodies[-1])["contents"]) < len(requests[-1]["contents"]), "something was summarized"
