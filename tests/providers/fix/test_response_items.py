"""Items of Responses that may not come back as the server sent them are mended, and nothing sealed or said is lost."""

from __future__ import annotations

import json

import pytest

from holdfast.providers.fix.fix_request import fix_request

USER = {"role": "user", "content": "look at this"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "seen"}]}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
IMAGE = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "aGk="}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "other"}}
APPROVAL = {"type": "mcp_approval_response", "approval_request_id": "mcpr_9", "approve": False}


def fix_items(*items, **fields):
    """Return the fixed items and the rules of the fixes; assert that the result is valid and stays as it is."""
    data = json.dumps({"model": "gpt-5.5", "store": False, **fields, "input": list(items)}).encode()
    result = fix_request(data, "openai-responses")
    assert result.is_valid
    assert fix_request(result.body, "openai-responses").body == result.body
    return json.loads(result.body)["input"], {fix.rule.removeprefix("openai-responses.") for fix in result.fixes}


@pytest.mark.parametrize(
    ("items", "fixed", "rule"),
    [
        (
            [USER, IMAGE | {"action": "generate", "size": "auto", "revised_prompt": "a cat"}, USER],
            [USER, IMAGE, USER],
            "output-fields",
        ),
        ([USER, REASONING | {"status": "completed"}, ANSWER], [USER, REASONING, ANSWER], "reasoning-status"),
        ([USER, SEARCH, ANSWER, USER], [USER, ANSWER, USER], "search-action"),
        ([USER, REASONING, SEARCH, ANSWER], [USER, REASONING, ANSWER], "search-action"),
        ([USER, REASONING, SEARCH, USER], [USER, USER], "search-action"),
        ([USER, IMAGE | {"status": "failed", "result": None}, ANSWER], [USER, ANSWER], "image-result"),
        ([USER, APPROVAL], [USER], "pairing"),
    ],
    ids=["image", "status", "search", "search after reasoning", "search that ends a turn", "failed", "approval"],
)
def test_fix_request_mends_items_of_answers(items, fixed, rule):
    """What is only for answers goes, with its item if that says nothing; reasoning is kept with what follows it."""
    assert fix_items(*items) == (fixed, {rule})


def test_fix_request_adds_the_summary_that_reasoning_lacks():
    """Sealed reasoning without a summary gets an empty one, and keeps its id and content."""
    bare = {key: value for key, value in REASONING.items() if key != "summary"}
    items, rules = fix_items(USER, bare, ANSWER, USER)
    assert items == [USER, REASONING, ANSWER, USER]
    assert rules == {"item-fields"}


def test_fix_request_keeps_the_reason_of_an_orphan_approval():
    """What the user wrote with an approval that nobody asked for stays, as a message."""
    items, _ = fix_items(USER, APPROVAL | {"reason": "not that folder"})
    assert items[1] == {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "not that folder"}],
    }


@pytest.mark.parametrize("stored", [{"previous_response_id": "resp_1"}, {"conversation": "conv_1"}])
def test_fix_request_keeps_an_approval_of_a_stored_request(stored):
    """In a stored conversation the request may be on the server, so the approval stays."""
    data = json.dumps({"model": "gpt-5.5", **stored, "input": [APPROVAL]}).encode()
    assert fix_request(data, "openai-responses").body is data
