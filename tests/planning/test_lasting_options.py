"""What hidden items of Responses still do: options that they set stay in force, and async calls may be answered."""

from __future__ import annotations

import json

import pytest
from sample_conversations import make_text

from holdfast import ConversationState, PlanInputs, Policy
from holdfast.config import get_target
from holdfast.normalize.projection import build_messages_to_send
from holdfast.planning.pipeline import plan_request
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.entries import Entry, MessageEntry
from holdfast.state.fold.fold_entries import apply_entries
from holdfast.state.view import build_projection, compute_prefix_digest

API = "openai-responses"
TARGET = get_target(API, "gpt-6-sol", window=16_000)


def make_update(id_, **options):
    return {"type": "configuration_update", "id": id_, **options}


LOW = make_update("cfg_1", reasoning={"effort": "low"})
HIGH = make_update("cfg_2", reasoning={"effort": "high"})
PLAIN_TEXT = make_update("cfg_3", text={"format": {"type": "text"}})
BOTH = make_update("cfg_4", reasoning={"effort": "xhigh"}, text={"format": {"type": "text"}})


def build_items(updates, turn_count=12):
    """Return items of a conversation of several windows, with ``updates`` by the turn that they stand before."""
    items = []
    for turn in range(turn_count):
        items += updates.get(turn, [])
        items.append({"type": "message", "role": "user", "content": f"Request {turn}: go on with part {turn}."})
        text = make_text(turn, 9_000)
        content = [{"type": "output_text", "text": text, "annotations": []}]
        items.append({"type": "message", "role": "assistant", "content": content})
    items.append({"type": "message", "role": "user", "content": "And now?"})
    return items


def plan_items(items, target=TARGET, state=None):
    """Return the plan for these items, and the items of the request that it makes."""
    body = json.dumps({"model": target.model, "input": items}).encode()
    parsed = measure_parsed_request(parse_request(body, API))
    state = state or ConversationState()
    new_messages = parsed.messages[len(state.history.sized_messages) :]
    state = apply_entries(state, [Entry("", None, MessageEntry(sized_message)) for sized_message in new_messages])
    result = plan_request(state, target, Policy(), PlanInputs())
    sent = render_request(parsed, build_messages_to_send(result))
    assert validate_request(sent, API) == ()
    return result, json.loads(sent)["input"]


@pytest.mark.parametrize(
    ("updates", "restated"),
    [
        ({}, []),
        ({1: [HIGH]}, [HIGH]),
        ({1: [LOW], 3: [HIGH]}, [HIGH]),
        ({1: [PLAIN_TEXT], 3: [HIGH]}, [PLAIN_TEXT, HIGH]),
        ({1: [HIGH], 3: [BOTH]}, [BOTH]),
        ({1: [BOTH], 3: [HIGH]}, [BOTH, HIGH]),
    ],
)
def test_compaction_restates_the_options_in_force(updates, restated):
    """What hidden items set last is stated again after the summary, in order and as it was."""
    result, sent = plan_items(build_items(updates))
    assert result.state.view.compaction is not None
    kept_updates = [item for item in sent if item["type"] == "configuration_update"]
    assert kept_updates == restated
    if restated:
        assert sent.index(restated[0]) == 1, "directly after the summary"


def test_compaction_leaves_kept_updates_in_their_place():
    """An update in the kept tail is where it was, and nothing is stated twice."""
    _, sent = plan_items(
        [*build_items({1: [LOW]}), HIGH, {"type": "message", "role": "user", "content": "Think well."}]
    )
    assert [item for item in sent if item["type"] == "configuration_update"] == [LOW, HIGH]


def test_restated_options_last_over_several_compactions():
    """The next compaction states them again, and the prefix between two compactions is the same byte for byte."""
    items = build_items({1: [HIGH]}, 12)
    first, sent = plan_items(items)
    again, sent_again = plan_items([*items, *build_items({}, 1)], state=first.state)
    assert sent_again[: len(sent)] == sent
    later, sent_later = plan_items([*items, *build_items({}, 14)], state=again.state)
    assert later.state.view.compaction != first.state.view.compaction
    assert [item for item in sent_later if item["type"] == "configuration_update"] == [HIGH]


def test_restated_options_count_in_sizes_and_digests():
    """What is stated again is part of the measured request: its tokens count, and its digest differs."""
    with_update, _ = plan_items(build_items({1: [HIGH]}))
    shown = build_projection(with_update.state)
    assert with_update.state.view.shown_tokens == sum(sized_message.tokens for sized_message in shown)
    without, _ = plan_items(build_items({}))
    assert compute_prefix_digest(with_update.state) != compute_prefix_digest(without.state)


def test_compaction_leaves_the_output_of_a_hidden_async_call_valid():
    """The output of an async call may come at any time; without its call it is retold, and no word of it is lost."""
    call = {"type": "function_call", "call_id": "c1", "name": "build", "arguments": "{}", "async": True}
    output = {"type": "function_call_output", "call_id": "c1", "output": "built 41 targets"}
    items = build_items({1: [call]})
    before, sent = plan_items(items)
    assert "c1" not in [item.get("call_id") for item in sent], "the call is hidden"
    _, sent = plan_items([*items, output], state=before.state)
    assert "built 41 targets" in json.dumps(sent)
