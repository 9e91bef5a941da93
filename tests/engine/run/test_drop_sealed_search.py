"""Search results that the provider no longer accepts are left out after one refusal."""

from __future__ import annotations

import json

from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.providers.rules.validate import validate_request
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import run_on_fake_clock
from holdfast.testing.upstream import ScriptedReply, ScriptedUpstream

SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
FOUND = {"type": "web_search_result", "title": "T", "url": "https://example.org/a", "encrypted_content": "Eqg"}
RESULT = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [FOUND]}
CITATION = {
    "type": "web_search_result_location",
    "url": "https://example.org/a",
    "title": "T",
    "encrypted_index": "Eo8",
    "cited_text": "so",
}
CITED = {"type": "text", "text": "so it is", "citations": [CITATION]}
REFUSAL = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "messages.1.content.1: Invalid encrypted_content in search_result block",
    },
}


def test_session_run_goes_on_without_sealed_search_results():
    """After the refusal the same request is sent without sealed data; titles, addresses and what was said stay."""
    answer = {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "claude-opus-4-8",
        "content": [SEARCH, RESULT, CITED],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 9, "output_tokens": 9},
    }
    upstream = ScriptedUpstream([answer, ScriptedReply((json.dumps(REFUSAL).encode(),), 400), "done", "more"])
    fields = {"tools": [{"type": "web_search_20260209", "name": "web_search"}], "max_tokens": 100}

    async def play():
        target = get_target("anthropic", "claude-opus-4-8")
        async with Engine.open(MemoryStore(), upstream=upstream, target=target, fields=fields) as engine:
            session = await engine.session(SAMPLE_KEY)
            for words in ("look", "and?", "so?"):
                async with session.run(words, stream=False) as run:
                    async for _ in run:
                        pass

    run_on_fake_clock(play)
    assert len(upstream.sent) == 4
    assert b"encrypted" in upstream.sent[1].body
    for sent in upstream.sent[2:]:
        assert b"encrypted" not in sent.body
        assert validate_request(sent.body, "anthropic") == ()
        for words in (b"so it is", b"https://example.org/a"):
            assert words in sent.body
