"""An approval of an MCP call is sent with its request or not at all; what the user wrote with it stays."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from msgspec.structs import replace

from holdfast.messages.cut_points import find_cut_points
from holdfast.messages.message import Message
from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.openai_responses.messages import group_items_by_message
from holdfast.providers.registry import get_api_dialect

DIALECT = get_api_dialect("openai-responses", "gpt-5.5")
USER = {"role": "user", "content": "Clean up."}
REQUEST = {"type": "mcp_approval_request", "id": "mcpr_1", "server_label": "files", "name": "rm", "arguments": "{}"}
APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
REFERENCE = {"type": "item_reference", "id": "mcpr_1"}


def decode(*items):
    raws = [Raw(json.dumps(item).encode()) for item in items]
    return [message for _, _, message in group_items_by_message(raws)]


@pytest.mark.parametrize(
    ("items", "dropped"),
    [
        ((USER, REQUEST, APPROVAL, USER), []),
        ((USER, REQUEST, USER, APPROVAL), []),
        ((USER, APPROVAL, USER), [1]),
        ((USER, APPROVAL, REQUEST, USER), [1]),
        ((USER, REQUEST, APPROVAL | {"approval_request_id": "mcpr_2"}, USER), [2]),
        ((REFERENCE, APPROVAL, USER), []),
    ],
    ids=["pair", "words between", "no request", "request after it", "another request", "stored request"],
)
def test_normalize_history_drops_an_approval_without_its_request(items, dropped):
    """An approval needs its request before it, wherever; a request that the server stores counts too."""
    edits = normalize_history(decode(*items), DIALECT)
    assert [(edit.span.start, edit.replacement) for edit in edits] == [(index, ()) for index in dropped]


def test_normalize_history_keeps_an_approval_of_a_stored_conversation():
    """With a part of the history on the server, the request may be there."""
    assert normalize_history(decode(APPROVAL, USER), replace(DIALECT, has_server_history=True)) == ()


def test_normalize_history_keeps_the_reason_of_an_approval():
    """What the user wrote is sent as a message of the user's."""
    [edit] = normalize_history(decode(USER, APPROVAL | {"approve": False, "reason": "not that one"}), DIALECT)
    assert edit.replacement == (Message.from_text("user", "not that one"),)


def test_find_cut_points_keeps_an_approval_with_its_request():
    """No cut divides a request from its approval, also with words between."""
    assert find_cut_points(decode(USER, REQUEST, APPROVAL, USER)) == [0, 1, 3, 4]
    assert find_cut_points(decode(USER, REQUEST, USER, APPROVAL, USER)) == [0, 1, 4, 5]
    assert find_cut_points(decode(USER, REQUEST, USER)) == [0, 1, 2, 3]
