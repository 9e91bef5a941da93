"""Worked wire cases, checked by the strict provider where the corpus is present."""

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
_MESSAGE_FIELDS = {
    "anthropic": "messages",
    "openai-chat": "messages",
    "openai-responses": "input",
    "gemini": "contents",
}
_MODELS = {
    "anthropic": "claude-opus-4-1",
    "openai-chat": "gpt-4.1",
    "openai-responses": "gpt-5.5",
    "gemini": "gemini-2.5-pro",
}


def _load_cases() -> list[dict[str, Any]]:
    return json.loads(_FILE.read_text()) if _FILE.exists() else []


def judge_case(case: dict[str, Any]) -> ProviderReply:
    """Return the provider's reply to a case; ``x_`` fields set what the provider has signed and stored."""
    api, extra = case["provider"], case.get("extra") or {}
    facts = {key: value for key, value in extra.items() if key.startswith("x_")}
    body = {key: value for key, value in extra.items() if key not in facts}
    body = {"model": _MODELS[api], **body, _MESSAGE_FIELDS[api]: json.loads(json.dumps(case["messages"]))}
    if api == "anthropic":
        body.setdefault("max_tokens", 8_000)
    provider = Provider()
    _PREPARE[api](provider, body, facts)
    model = body.pop("model") if api == "gemini" else ""
    return provider.answer(IncomingRequest(api, "generate", json.dumps(body).encode(), model))


# -- Anthropic: signatures ---------------------------------------------------------------------------------------------

_STRUCTURE = {"system", "user", "assistant", "tool", "use", "result", "text", "thinking", "tools"}


def _sign_anthropic_body(provider: Provider, body: dict[str, Any], facts: dict[str, Any]) -> None:
    """Sign all thinking and compactions as the case says, otherwise as they are."""
    for block in _iter_blocks(body):
        name = block.get("signature", block.get("data"))
        if (
            block.get("type") in ("thinking", "redacted_thinking")
            and isinstance(name, str)
            and _is_known_signature(facts, name)
        ):
            block["signature" if "signature" in block else "data"] = _sign_block(body, block, name, facts)
        if block.get("type") == "compaction" and block.get("content") and "signature" in block:
            block["signature"] = make_provider_signature(
                "compaction", words="", content=digest_pieces(block["content"].encode())
            )


def _iter_blocks(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks of all messages."""
    for message in body["messages"]:
        content = message.get("content") if isinstance(message, dict) else None
        yield from (block for block in content if isinstance(block, dict)) if isinstance(content, list) else ()


def _sign_block(body: dict[str, Any], block: dict[str, Any], name: str, facts: dict[str, Any]) -> str:
    blocks = split_into_blocks("anthropic", body)
    index = next(index for index, candidate in enumerate(blocks) if candidate.value is block)
    text = _find_signature_fact(facts, "thinking", name) or block.get("thinking", "")
    prefix = _find_signature_fact(facts, "prefix", name)
    is_same = prefix is None or _is_same_history(prefix, blocks[:index])
    return sign_thinking(
        HistoryDigest(blocks[:index]).state if is_same else "",
        _find_signature_fact(facts, "model", name) or body["model"],
        text,
    )


def _find_signature_fact(facts: dict[str, Any], word: str, name: str) -> str | None:
    """Return the case's fact about a signature, under a key that contains ``word``."""
    for key, value in facts.items():
        if word in key and isinstance(value, str | dict):
            return value if isinstance(value, str) else value.get(name)
    return None


def _is_known_signature(facts: dict[str, Any], name: str) -> bool:
    """Return whether the provider made a signature; if the case lists some, only those."""
    listed = [value for key, value in facts.items() if "signature" in key and isinstance(value, list)]
    return not listed or any(name in value for value in listed)


def _is_same_history(prefix: str, before: list[PromptBlock]) -> bool:
    """Return whether a history is the one that a case writes as ``role:text``: all its texts and no others."""
    rest, names = prefix, set(_STRUCTURE)
    for block in before:
        names |= {str(block.value.get(key)) for key in ("id", "name", "tool_use_id", "signature") if key in block.value}
        for text in filter(None, block.rendering.text.split("\n")):
            if text not in rest and block.kind != "tool_use":
                return False
            rest = rest.replace(text, " ", 1)
    for name in sorted(names, key=len, reverse=True):
        rest = rest.replace(name, " ")
    return not re.search(r"[A-Za-z0-9]", rest)


# -- the other APIs ----------------------------------------------------------------------------------------------------


def _prepare_chat(provider: Provider, body: dict[str, Any], facts: dict[str, Any]) -> None:
    """Do nothing: Chat has no state."""


_ITEM_TYPES = {"fc": "function_call", "rs": "reasoning", "msg": "message"}


def _prepare_responses(provider: Provider, body: dict[str, Any], facts: dict[str, Any]) -> None:
    """Encrypt reasoning, store items that are only referenced, and link items as the case says."""
    items = [item for item in body["input"] if isinstance(item, dict)] if isinstance(body["input"], list) else []
    for item in items:
        kind, id_ = item.get("type"), str(item.get("id"))
        if item.get("encrypted_content"):
            encrypted = (
                encrypt_reasoning("", body["model"], "")
                if kind == "reasoning"
                else make_provider_signature("compaction", words="")
            )
            item["encrypted_content"] = encrypted
        elif kind in ("reasoning", "item_reference") and body.get("store") is not False:
            item_fields = {
                "type": _ITEM_TYPES.get(id_.partition("_")[0], "message"),
                "role": "assistant",
                "content": "x",
            }
            provider.response_store.items[id_] = ResponseStoreItem(
                item if kind == "reasoning" else item_fields | {"id": id_}, is_stored=True
            )
    links = [value for key, value in facts.items() if "pairs" in key]
    for id_, reasoning in [pair for value in links for pair in value.items()]:
        linked_item = next((item for item in items if item.get("id") == id_), {"id": id_})
        provider.response_store.items[id_] = ResponseStoreItem(
            linked_item, is_stored=True, reasoning={"type": "reasoning", "id": reasoning}
        )
    if body.get("previous_response_id"):
        provider.response_store.answers[body["previous_response_id"]] = list(_iter_previous_calls(items))


def _iter_previous_calls(items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the calls that a previous answer must have had."""
    call_ids = {item.get("call_id") for item in items if str(item.get("type")).endswith("_call")}
    for item in items:
        if str(item.get("type")).endswith("_call_output") and item.get("call_id") not in call_ids:
            kind = item["type"].removesuffix("_output")
            yield {"type": kind, "call_id": item.get("call_id"), "name": "ls", "arguments": "{}", "input": ""}


def _sign_gemini_body(provider: Provider, body: dict[str, Any], facts: dict[str, Any]) -> None:
    """Sign all parts that have a signature."""
    contents = [content for content in body["contents"] if isinstance(content, dict)]
    for part in [part for content in contents for part in content.get("parts") or () if isinstance(part, dict)]:
        signature = get_thought_signature(part)
        if (
            isinstance(signature, str)
            and signature not in ("", DUMMY_SIGNATURE)
            and _is_known_signature(facts, signature)
        ):
            part["thoughtSignature"] = sign_gemini_part(
                part, _find_signature_fact(facts, "model", signature) or body["model"]
            )


_PREPARE = {
    "anthropic": _sign_anthropic_body,
    "openai-chat": _prepare_chat,
    "openai-responses": _prepare_responses,
    "gemini": _sign_gemini_body,
}


def test_provider_answers_or_refuses_as_every_case_says():
    """A request is answered or refused exactly as the case says, with its status and error code."""
    mismatches = []
    for case in _load_cases():
        reply = judge_case(case)
        if isinstance(reply, RefusalReply) is case["valid"]:
            mismatches.append((case["id"], case["confidence"], reply))
        elif isinstance(reply, RefusalReply):
            code = case.get("error_code") or reply.details.get("error_code")
            if (reply.status, code) != (case["http_status"], reply.details.get("error_code")):
                mismatches.append((case["id"], reply))
        else:
            assert isinstance(reply, ModelAnswer)
    assert [mismatch for mismatch in mismatches if mismatch[1] != "inferred"] == []


def test_provider_uses_the_quoted_error_messages():
    """Where a case quotes an error, the provider's message is exactly that."""
    for case in _load_cases():
        if case.get("gist") == "quoted" and case["confidence"] != "inferred":
            reply = judge_case(case)
            assert isinstance(reply, RefusalReply)
            assert reply.message == case["error_gist"], case["id"]


_NOT_IN_PROVIDER = ("request_bytes", "oversized_part", "client_text")
"""Details of errors about bytes or one part, or produced by a client."""


def test_provider_has_a_wording_for_every_overflow():
    """For each observed overflow error the provider has a wording that matches it."""
    patterns = [re.compile(_build_pattern(wording.text)) for wording in OVERFLOW_WORDINGS.values()]
    cases = json.loads(_OVERFLOWS.read_text()) if _OVERFLOWS.exists() else []
    for case in cases:
        if case["is_overflow"] and case["channel"] != "answer" and case["detail"] not in _NOT_IN_PROVIDER:
            assert any(pattern.search(case["example_message"]) for pattern in patterns), case["example_message"]


def _build_pattern(text: str) -> str:
    """Return the pattern of a wording with its numbers and names left open."""
    return re.sub(r"\\\{[a-z]+(?::,)?\\\}", r".+?", re.escape(text))
