"""Errors in the form of the Responses API."""

from __future__ import annotations

from typing import Any

from holdfast.providers.common.error_forms import ErrorForm, ErrorFormat, encode_error_json
from holdfast.providers.common.openai.errors import OPENAI_ERROR_FORMS, word_overflow


def _word_overflow(
    kind: str,
    limit: int | None,
    requested_tokens: int | None,
    output: int | None,
) -> str:
    if kind == "context_window" and limit is None and requested_tokens is None:
        return "Your input exceeds the context window of this model. Please adjust your input and try again."
    return word_overflow(kind, limit, requested_tokens, output)


def _build_body(form: ErrorForm, text: str, is_overflow: bool) -> dict[str, Any]:
    param = "input" if is_overflow else None
    return {"error": {"message": text, "type": form.type, "param": param, "code": form.code}}


def _render_event(body: dict[str, Any], sequence_number: int) -> bytes:
    failed_event = _build_failed_event(body["error"], sequence_number)
    return b"event: response.failed\ndata: " + encode_error_json(failed_event) + b"\n\n"


def _build_failed_event(error: dict[str, Any], number: int) -> dict[str, Any]:
    """Build the event ``response.failed``, with every field that the SDK's type requires."""
    response = {
        "id": "resp_failed", "object": "response", "created_at": 0, "status": "failed", "model": "", "output": [],
        "error": {"code": error["code"] or error["type"], "message": error["message"]}, "incomplete_details": None,
        "instructions": None, "metadata": {}, "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto",
        "tools": [], "top_p": None, "usage": None,
    }  # fmt: skip
    return {"type": "response.failed", "sequence_number": number, "response": response}


ERROR_FORMAT = ErrorFormat(
    OPENAI_ERROR_FORMS,
    _word_overflow,
    _build_body,
    _render_event,
    sends_overflow_as_event=True,
)
"""Codex only understands an overflow as a ``response.failed`` event."""
