"""Items of answers go back in the form that requests have, whatever a client sends."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import get_target
from holdfast.normalize.normalize_history import normalize_history
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.view import apply_normalization

REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAB"}
IMAGE = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
FORM_RULES = {
    f"openai-responses.{rule}" for rule in ("item-fields", "output-fields", "reasoning-status", "search-action")
}


def build_body(*items):
    """Return a request in which the items stand between a question and an answer."""
    question = {"type": "message", "role": "user", "content": "draw"}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]}
    body = {"model": "gpt-5.5", "store": False, "input": [question, *items, answer, question]}
    return json.dumps(body).encode()


def normalize(body):
    """Return the body after normalization; the same object if nothing had to change."""
    parsed = parse_request(body, "openai-responses")
    dialect = get_target("openai-responses", "gpt-5.5").dialect
    messages = [sized_message.message for sized_message in parsed.messages]
    edits = normalize_history(messages, dialect, has_system_field=not dialect.has_system_field)
    return render_request(parsed, apply_normalization(list(parsed.messages), edits))


def without(item, key):
    return {name: value for name, value in item.items() if name != key}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (without(REASONING, "summary"), [REASONING]),
        (REASONING | {"summary": None}, [REASONING]),
        (REASONING | {"status": "completed"}, [REASONING]),
        (IMAGE | {"action": "generate", "size": "1024x1024", "quality": "high"}, [IMAGE]),
        (SEARCH | {"action": {"type": "other"}}, []),
    ],
)
def test_items_of_answers_get_the_form_of_requests(item, expected):
    """What a request refuses is left out or put in; what is sealed, and all other fields, stay."""
    sent = json.loads(normalize(build_body(item)))["input"][1:-2]
    assert sorted(map(json.dumps, map(sort_fields, sent))) == sorted(map(json.dumps, map(sort_fields, expected)))


def sort_fields(item):
    return dict(sorted(item.items()))


def test_reasoning_before_an_item_of_answers_stays_with_what_comes_next():
    """Sealed reasoning is not lost with a search that may not come back; without anything after it, it goes too."""
    search = SEARCH | {"action": {"type": "other"}}
    sent = json.loads(normalize(build_body(REASONING, search)))["input"]
    assert [item["type"] for item in sent] == ["message", "reasoning", "message", "message"]
    body = json.loads(build_body(REASONING, search))
    del body["input"][-2]
    sent = json.loads(normalize(json.dumps(body).encode()))["input"]
    assert [item["type"] for item in sent] == ["message", "message"]


@pytest.mark.parametrize(
    "item",
    [
        REASONING,
        REASONING | {"status": None},
        IMAGE,
        SEARCH | {"action": {"type": "search", "query": "tides"}},
        SEARCH | {"action": {"type": "find", "pattern": "ebb"}},
    ],
)
def test_items_in_the_form_of_requests_keep_their_bytes(item):
    """A valid request is the same object afterwards."""
    body = build_body(item)
    assert normalize(body) is body


value_strategy = st.none() | st.sampled_from(["completed", [], {"type": "other"}, {"type": "search"}, {}, 4])
field_strategy = st.builds(
    lambda fields, summary: fields | summary,
    st.dictionaries(st.sampled_from(["status", "action", "size", "quality", "note"]), value_strategy),
    st.sampled_from([{}, {"summary": None}, {"summary": []}]),
)


@given(st.lists(st.tuples(st.sampled_from([REASONING, IMAGE, SEARCH]), field_strategy), max_size=3))
def test_any_items_break_no_rule_of_their_form_and_change_once(items):
    """valid-request: after normalization no rule about these forms is broken but by nulls, and a second one is idle."""
    bodies = [item | {"id": f"{item['id']}{at}"} | fields for at, (item, fields) in enumerate(items)]
    once = normalize(build_body(*bodies))
    findings = validate_request(once, "openai-responses", model="gpt-5.5")
    broken = {(found.rule, found.path) for found in findings if found.rule in FORM_RULES}
    assert all(read_value(once, path) is None for _, path in broken)
    assert normalize(once) == once


def read_value(body, path):
    """Return the value at a path such as ``$.input[1].size``."""
    index, _, key = path.removeprefix("$.input[").partition("].")
    return json.loads(body)["input"][int(index)].get(key.split(".")[0])
