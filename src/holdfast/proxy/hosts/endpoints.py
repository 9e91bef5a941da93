"""Write the answers for plugins of coding agents."""

from __future__ import annotations

import msgspec

from holdfast.hosts.compact_transcript import CompactedTranscript
from holdfast.proxy.hosts.plan_messages import PlannedMessages
from holdfast.proxy.hosts.recall_request import RecalledText
from holdfast.proxy.http.headers import RequestState
from holdfast.proxy.http.relay import ResponseHead, ResponsePiece
from holdfast.proxy.local_responses import JSON_HEADER, add_holdfast_headers


def write_plugin_answer(
    answer: CompactedTranscript | PlannedMessages | RecalledText, state: RequestState, session_key: str = ""
) -> list[ResponsePiece]:
    """Return the answer of one of the endpoints for plugins."""
    head = add_holdfast_headers(ResponseHead(200, [JSON_HEADER]), state, session_key)
    return [head, msgspec.json.encode(answer)]


def write_plugin_error(status: int, path: str, why: str, advice: str) -> list[ResponsePiece]:
    """Return an error for a plugin: where in its document, what is wrong, and one thing to do."""
    error = {"path": path, "why": why, "advice": advice}
    return [ResponseHead(status, [JSON_HEADER]), msgspec.json.encode({"error": error})]
