"""A message of many texts gives way as a whole: its ends stay, one line tells what its middle was and where it lies."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_conversations import make_text

from holdfast import PlanInputs, Policy, apply, plan
from holdfast.config import get_target
from holdfast.engine.log.journal import Journal
from holdfast.engine.recall import iter_recall_pages
from holdfast.messages.message import Message, format_part_placeholder, get_part_text
from holdfast.messages.parts import Media, Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message, estimate_text_tokens
from holdfast.planning.budget import compute_budget
from holdfast.planning.pipeline import plan_request
from holdfast.planning.stages.multi_text import MAX_SEPARATE_TEXTS, select_middle_texts
from holdfast.providers.registry import API_SPECS
from holdfast.providers.requests.parsed_request import measure_parsed_request, parse_request
from holdfast.providers.requests.request_body import render_request
from holdfast.providers.rules.validate import validate_request
from holdfast.state.calibration.token_estimate import estimate_request_tokens
from holdfast.store.memory import MemoryStore
from holdfast.testing.provider.client import STRICTEST_MODELS

WHERE = get_target("anthropic", "claude-sonnet-4-5", window=12_000)
PLAIN = Policy().with_settings(
    results={"spill_chars": 0, "message_chars": 0, "spill_share": 0.0, "message_share": 0.0}, compaction={"auto": False}
)
PHOTO = Media("image", "image/png", 900, "wall.png", "iVBORw0KGgo=")
LINE = re.compile(
    r'\[([\d,]+) texts of this message, ([\d,]+) characters, are left out here; (?:recall\(id="(\w+)"\))?'
)
OLD = [Message.from_text("user", "go"), Message("assistant", (ToolCall("t", "look"),))]
SHORT = ToolResult("t", "look", (Text("found"),))


def texts(number, chars):
    return tuple(Text(f"{at:05} " + ("kelp and rope\n" * 300)[:chars]) for at in range(number))


def line(message):
    """Return the one line in a message that stands for others: how many texts, their characters, the handle."""
    [found] = [found for part in message.parts if (found := LINE.match(get_part_text(part)))]
    return int(found[1].replace(",", "")), int(found[2].replace(",", "")), found[3]


def kept(said, shown):
    """Return how many texts stay at the start and at the end of a message; each as it was said, or its beginning."""
    at = next(at for at, part in enumerate(shown) if LINE.match(get_part_text(part)))
    behind = len(shown) - at - 1
    for new, old in zip((*shown[:at], *shown[at + 1 :]), (*said[:at], *said[len(said) - behind :]), strict=True):
        assert new == old or "characters left out" in new.text
        assert new.text[:300] == old.text[:300]
    return at, behind


@given(
    st.integers(200, 1_500),
    st.integers(10, 900),
    st.sampled_from([PlanInputs(), PlanInputs(can_spill=False, overflow_step="fallback")]),
)
def test_its_middle_gives_way(number, chars, world):
    """newest-user-message, degenerate-is-defined: more than fits is shown by whole texts of both ends, first and last
    among them, and a line; it fits.
    """
    said = texts(number, chars)
    made = plan([Message("user", said)], WHERE, inputs=world)
    room = compute_budget(WHERE, Policy().settings)
    assert made.after <= room.usable
    assert made.after == estimate_request_tokens(made.state, WHERE)
    [shown] = apply([Message("user", said)], made)
    if not made.record:
        assert made.before <= room.usable
        return
    start, end = kept(said, shown.parts)
    assert min(start, end) >= 1
    gone, length, handle = line(shown)
    whole = "\n".join(part.text for part in said[start : number - end])
    assert (gone, length) == (number - start - end, len(whole))
    assert [blob.text for blob in made.blobs] == ([whole] if world.can_spill else [])
    assert made.blobs[0].hash.startswith(handle) if world.can_spill else handle is None
    assert (
        sum(edit.saves for edit in made.record)
        == made.state.history.sized_messages[0].tokens - made.state.view.shown_tokens
    )


def test_what_fits_stays():
    """The newest words stay whole where they fit, however many texts they are."""
    said = [Message("user", texts(400, 10))]
    assert plan(said, WHERE).record == ()


@pytest.mark.parametrize("number", [MAX_SEPARATE_TEXTS, MAX_SEPARATE_TEXTS + 1])
def test_few_give_way_one_by_one(number):
    """A few texts, and long ones, each have a preview or a line of their own; of more small ones the middle goes."""
    said = [Message("user", texts(number, 3_900))]
    [shown] = apply(said, made := plan(said, WHERE))
    if number == MAX_SEPARATE_TEXTS:
        assert len(shown.parts) == number
        assert len({edit.blob_hash for edit in made.record}) == len(made.record)
    else:
        assert line(shown)[0] == number + 1 - len(shown.parts)
    long = Text(make_text(1, 400_000))
    said = [Message("user", (*texts(20, 100), long, *texts(20, 100)))]
    [shown] = apply(said, plan(said, WHERE))
    assert [at for at, part in enumerate(shown.parts) if part != said[0].parts[at]] == [20]


def test_it_fits_beside_results_and_media():
    """Results stay in their places, whatever texts go around them; pictures go with the texts where nothing else is."""
    said = [*OLD, Message("user", (SHORT, *texts(900, 100), PHOTO, *texts(900, 100)))]
    made = plan(said, WHERE)
    shown = apply(said, made)[-1].parts
    assert (shown[0], shown[-1], PHOTO in shown) == (SHORT, said[-1].parts[-1], True)
    pictures = [*OLD, Message("user", (SHORT, *([PHOTO] * 3_000), Text("What is on them?")))]
    made = plan(pictures, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
    shown = apply(pictures, made)[-1]
    assert (shown.parts[0], shown.parts[1], shown.parts[-1]) == (
        SHORT,
        Text(format_part_placeholder(PHOTO)),
        pictures[-1].parts[-1],
    )
    assert line(shown)[0] == 3_003 - len(shown.parts)
    assert made.after <= compute_budget(WHERE, Policy().settings).usable


def test_what_went_before_is_behind_the_same_line():
    """Made smaller still there is one line again, for all that went, and one text to be read back."""
    said = [Message("user", texts(900, 400))]
    large = get_target("anthropic", "claude-sonnet-4-5", window=64_000)
    first = plan(said, large)
    before = line(apply(said, first)[0])[0]
    again = plan_request(first.state, WHERE, Policy(), PlanInputs(overflow_step="fallback"))
    [shown] = apply(said, again)
    gone, length, handle = line(shown)
    start, end = kept(said[0].parts, shown.parts)
    [blob] = again.blobs
    assert gone == 900 - start - end > before > 0
    assert blob.text == "\n".join(part.text for part in said[0].parts[start : 900 - end])
    assert (len(blob.text), blob.hash.startswith(handle)) == (length, True)
    assert again.after == estimate_request_tokens(again.state, WHERE) <= compute_budget(WHERE, Policy().settings).usable
    assert again.state.view.shown_tokens == pytest.approx(
        sum(build_sized_message(message).tokens for message in apply(said, again)), abs=8
    )


def test_nothing_larger_takes_its_place():
    """A line that is no shorter than what it would stand for is not put there."""
    said = [Message("user", tuple(Text("x") for _ in range(MAX_SEPARATE_TEXTS + 2)))]
    made = plan(said, WHERE, PLAIN, inputs=PlanInputs(overflow_step="fallback"))
    assert made.record == ()


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(0, 400), st.floats(0, 1))
def test_the_middle(sizes, most, tail):
    """What stays are the first and the last, and as many from both ends as fit; each end has its share."""
    gone = select_middle_texts(len(sizes), sizes.__getitem__, most, tail)
    start, end = sizes[: gone.start], sizes[gone.stop :]
    assert 0 <= gone.start <= gone.stop <= len(sizes)
    assert min(1, len(sizes)) <= len(start) + len(end)
    assert bool(start) == (len(sizes) > 1)
    assert bool(end) == bool(sizes)
    assert sum(start[1:]) + min(start[:1], default=0) <= max(most * (1 - tail), *start[:1], 0)
    assert sum(end) <= max(most * tail, *end[-1:], 0)
    if gone and len(start) > 1:
        assert sum(start) + sizes[gone.start] > most * (1 - tail)


BLOCKS = {
    "anthropic": {"type": "text"},
    "openai-chat": {"type": "text"},
    "openai-responses": {"type": "input_text"},
    "gemini": {},
}


@pytest.mark.parametrize("api", BLOCKS)
def test_what_stays_keeps_its_bytes(api):
    """valid-request, signed-bytes-intact: on every API the request is valid, kept blocks are as they came, and recall
    returns the rest.
    """
    blocks = [BLOCKS[api] | {"text": part.text} for part in texts(3_000, 60)]
    said = {"role": "user", "parts" if api == "gemini" else "content": blocks}
    body = {API_SPECS[api].messages_field: [said]}
    body |= {} if api == "gemini" else {"model": STRICTEST_MODELS[api]}
    body |= {"max_tokens": 900} if api == "anthropic" else {}
    lens = measure_parsed_request(parse_request(json.dumps(body, indent=1).encode(), api))
    with MemoryStore() as store:
        journal = Journal.open(store, "s")
        journal.append(*lens.messages)
        out = render_request(
            lens, journal.prepare_request(get_target(api, STRICTEST_MODELS[api], window=12_000)).messages
        )
        assert validate_request(out, api) == ()
        [shown] = parse_request(out, api).messages
        start, end = kept(lens.messages[0].message.parts, shown.message.parts)
        handle = line(shown.message)[2]
        read = "".join(page.text for page in iter_recall_pages(store, "s", handle))
        assert read == "\n".join(block["text"] for block in blocks[start : len(blocks) - end])
        assert estimate_text_tokens(read) > 10_000
