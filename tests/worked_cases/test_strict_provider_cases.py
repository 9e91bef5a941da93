"""The worked wire cases beside this checkout, judged by the strict provider, where they are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.testing.provider.calls import IncomingRequest, ModelAnswer, ProviderReply, RefusalReply
from holdfast.testing.provider.checks.overflow_wordings import OVERFLOW_WORDINGS
from holdfast.testing.provider.provider import Provider
from holdfast.testing.provider.request_pieces import PromptBlock, split_into_blocks
from holdfast.testing.provider.signatures.anthropic_thinking import HistoryDigest, sign_thinking
from holdfast.testing.provider.signatures.gemini_thoughts import (
    DUMMY_SIGNATURE,
    get_thought_signature,
    sign_gemini_part,
)
from holdfast.testing.provider.signatures.opaque_texts import digest_pieces, make_provider_signature
from holdfast.testing.provider.signatures.response_history import ResponseStoreItem, encrypt_reasoning

_FILE = Path(__file__).parents[3] / "shared" / "cases" / "wire.json"
_OVERFLOWS = _FILE.with_name("overflow-errors.json")
_PLACES = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
_MODELS = {
    "anthropic": "claude-opus-4-1",
    "openai-chat": "gpt-4.1",
    "openai-responses": "gpt-5.5",
    "gemini": "gemini-2.5-pro",
}


def _cases() -> list[dict[str, Any]]:
    return json.loads(_FILE.read_text()) if _FILE.exists() else []


def judge_case(case: dict[str, Any]) -> ProviderReply:
    """Return what a provider replies to a case: ``x_`` fields become what it signed and what it knows."""
    api, extra = case["provider"], case.get("extra") or {}
    told = {key: value for key, value in extra.items() if key.startswith("x_")}
    body = {key: value for key, value in extra.items() if key not in told}
    body = {"model": _MODELS[api], **body, _PLACES[api]: json.loads(json.dumps(case["messages"]))}
    if api == "anthropic":
        body.setdefault("max_tokens", 8_000)
    provider = Provider()
    _PREPARE[api](provider, body, told)
    model = body.pop("model") if api == "gemini" else ""
    return provider.answer(IncomingRequest(api, "generate", json.dumps(body).encode(), model))


# -- Anthropic: signatures ---------------------------------------------------------------------------------------------

_STRUCTURE = {"system", "user", "assistant", "tool", "use", "result", "text", "thinking", "tools"}


def _anthropic(provider: Provider, body: dict[str, Any], told: dict[str, Any]) -> None:
    """Sign all thinking and compactions as the case says they were signed, else as they stand."""
    for block in _content(body):
        name = block.get("signature", block.get("data"))
        if block.get("type") in ("thinking", "redacted_thinking") and isinstance(name, str) and _known(told, name):
            block["signature" if "signature" in block else "data"] = _signature(body, block, name, told)
        if block.get("type") == "compaction" and block.get("content") and "signature" in block:
            block["signature"] = make_provider_signature(
                "compaction", words="", content=digest_pieces(block["content"].encode())
            )


def _content(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of all messages."""
    for message in body["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        yield from (block for block in content if isinstance(block, dict)) if isinstance(content, list) else ()


def _signature(body: dict[str, Any], block: dict[str, Any], name: str, told: dict[str, Any]) -> str:
    found = split_into_blocks("anthropic", body)
    at = next(at for at, one in enumerate(found) if one.value is block)
    words = _told(told, "thinking", name) or block.get("thinking", "")
    prefix = _told(told, "prefix", name)
    is_same = prefix is None or _same(prefix, found[:at])
    return sign_thinking(
        HistoryDigest(found[:at]).state if is_same else "", _told(told, "model", name) or body["model"], words
    )


def _told(told: dict[str, Any], word: str, name: str) -> str | None:
    """Return what the case tells of a signature under a key with this word in it."""
    for key, value in told.items():
        if word in key and isinstance(value, str | dict):
            return value if isinstance(value, str) else value.get(name)
    return None


def _known(told: dict[str, Any], name: str) -> bool:
    """Return whether the provider made a signature: where the case lists some, those alone."""
    listed = [value for key, value in told.items() if "signature" in key and isinstance(value, list)]
    return not listed or any(name in value for value in listed)


def _same(prefix: str, before: list[PromptBlock]) -> bool:
    """Return whether a history is the one that a case writes as ``role:words``: all its words, and no others."""
    left, names = prefix, set(_STRUCTURE)
    for block in before:
        names |= {str(block.value.get(key)) for key in ("id", "name", "tool_use_id", "signature") if key in block.value}
        for words in filter(None, block.rendering.text.split("\n")):
            if words not in left and block.kind != "tool_use":
                return False
            left = left.replace(words, " ", 1)
    for name in sorted(names, key=len, reverse=True):
        left = left.replace(name, " ")
    return not re.search(r"[A-Za-z0-9]", left)


# -- the others --------------------------------------------------------------------------------------------------------


def _chat(provider: Provider, body: dict[str, Any], told: dict[str, Any]) -> None:
    """Chat has no state."""


_KINDS = {"fc": "function_call", "rs": "reasoning", "msg": "message"}


def _responses(provider: Provider, body: dict[str, Any], told: dict[str, Any]) -> None:
    """Seal what is sealed, put what is only named on the shelf, link what the case links."""
    items = [item for item in body["input"] if isinstance(item, dict)] if isinstance(body["input"], list) else []
    for item in items:
        kind, id_ = item.get("type"), str(item.get("id"))
        if item.get("encrypted_content"):
            sealed = (
                encrypt_reasoning("", body["model"], "")
                if kind == "reasoning"
                else make_provider_signature("compaction", words="")
            )
            item["encrypted_content"] = sealed
        elif kind in ("reasoning", "item_reference") and body.get("store") is not False:
            meant = {"type": _KINDS.get(id_.partition("_")[0], "message"), "role": "assistant", "content": "x"}
            provider.response_store.items[id_] = ResponseStoreItem(
                item if kind == "reasoning" else meant | {"id": id_}, is_stored=True
            )
    links = [value for key, value in told.items() if "pairs" in key]
    for id_, reasoning in [pair for value in links for pair in value.items()]:
        found = next((item for item in items if item.get("id") == id_), {"id": id_})
        provider.response_store.items[id_] = ResponseStoreItem(
            found, is_stored=True, reasoning={"type": "reasoning", "id": reasoning}
        )
    if body.get("previous_response_id"):
        provider.response_store.answers[body["previous_response_id"]] = list(_calls_before(items))


def _calls_before(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the calls that an earlier answer must have had."""
    here = {item.get("call_id") for item in items if str(item.get("type")).endswith("_call")}
    for item in items:
        if str(item.get("type")).endswith("_call_output") and item.get("call_id") not in here:
            kind = item["type"].removesuffix("_output")
            yield {"type": kind, "call_id": item.get("call_id"), "name": "ls", "arguments": "{}", "input": ""}


def _gemini(provider: Provider, body: dict[str, Any], told: dict[str, Any]) -> None:
    """Sign all parts that are signed."""
    contents = [content for content in body["contents"] if isinstance(content, dict)]
    for part in [part for content in contents for part in content.get("parts") or () if isinstance(part, dict)]:
        found = get_thought_signature(part)
        if isinstance(found, str) and found not in ("", DUMMY_SIGNATURE) and _known(told, found):
            part["thoughtSignature"] = sign_gemini_part(part, _told(told, "model", found) or body["model"])


_PREPARE = {"anthropic": _anthropic, "openai-chat": _chat, "openai-responses": _responses, "gemini": _gemini}


def test_the_provider_agrees_with_every_case():
    """A request is answered or refused exactly as the case says, with its status and error code."""
    wrong = []
    for case in _cases():
        reply = judge_case(case)
        if isinstance(reply, RefusalReply) is case["valid"]:
            wrong.append((case["id"], case["confidence"], reply))
        elif isinstance(reply, RefusalReply):
            code = case.get("error_code") or reply.details.get("error_code")
            if (reply.status, code) != (case["http_status"], reply.details.get("error_code")):
                wrong.append((case["id"], reply))
        else:
            assert isinstance(reply, ModelAnswer)
    assert [one for one in wrong if one[1] != "inferred"] == []


def test_errors_that_were_seen_are_said_in_their_words():
    """Where a case quotes an error, the provider says just that."""
    for case in _cases():
        if case.get("gist") == "quoted" and case["confidence"] != "inferred":
            reply = judge_case(case)
            assert isinstance(reply, RefusalReply)
            assert reply.message == case["error_gist"], case["id"]


_ELSEWHERE = ("request_bytes", "oversized_part", "client_text")
"""Errors that are about bytes or one part, or that a client says."""


def test_every_way_to_say_an_overflow_can_be_said():
    """For each overflow that was seen there is a variant of the provider that says it."""
    said = [re.compile(_pattern(wording.text)) for wording in OVERFLOW_WORDINGS.values()]
    cases = json.loads(_OVERFLOWS.read_text()) if _OVERFLOWS.exists() else []
    for case in cases:
        if case["is_overflow"] and case["channel"] != "answer" and case["detail"] not in _ELSEWHERE:
            assert any(one.search(case["example_message"]) for one in said), case["example_message"]


def _pattern(text: str) -> str:
    """Return the pattern of a wording, numbers and names left open."""
    return re.sub(r"\\\{[a-z]+(?::,)?\\\}", r".+?", re.escape(text))
