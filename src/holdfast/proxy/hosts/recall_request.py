"""Read the body of ``POST /v1/recall``: a call of the recall tool that a plugin gives its model."""

from __future__ import annotations

from msgspec import Struct

from holdfast.engine.recall import answer_recall
from holdfast.hosts.transcript import decode_envelope
from holdfast.proxy.hosts.plan_request import make_plugin_session_key
from holdfast.store.base import SessionStore


class RecallRequest(Struct, frozen=True):
    """A call of the tool, for the conversation that the plugin names as in ``POST /v1/plan``."""

    client: str
    session: str
    id: str = ""
    """The handle of a text, as previews and extracts show it; empty to search the whole conversation."""
    search: str = ""
    lines: str = ""
    """Lines, counted from 1: ``12-480``."""
    chars: str = ""
    """Characters, counted from 0: ``0-4000``."""
    page: int = 1


class RecalledText(Struct, frozen=True, rename="camel"):
    """The tool's result."""

    text: str
    is_error: bool


def parse_recall_request(body: bytes) -> RecallRequest:
    """Return the request in ``body``; raise ``TranscriptError`` if it is none."""
    return decode_envelope(body, RecallRequest)


def answer_recall_request(store: SessionStore, request: RecallRequest) -> RecalledText:
    """Return the tool's result for the model; a mistake of the model is explained in it. Called in the worker."""
    arguments = {
        "id": request.id,
        "search": request.search,
        "lines": request.lines,
        "chars": request.chars,
        "page": request.page,
    }
    answer = answer_recall(store, make_plugin_session_key(request.client, request.session), arguments)
    return RecalledText(answer.text, answer.is_error)
