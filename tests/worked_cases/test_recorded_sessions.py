"""Checks on recorded sessions that lie beside the checkout, where they do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.formats import (
    build_state_at_leaf,
    export_bytes,
    get_branch_entries,
    get_full_history_entries,
    list_model_calls,
    read_recording,
    select_new_entries,
)
from holdfast.formats.codex.read import decode_codex_item
from holdfast.formats.pi.read import decode_pi_message
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.gemini import messages as gemini
from holdfast.state.entries import MessageEntry

SHARED = Path(__file__).parents[3] / "shared"
SESSIONS = ("data/*/*.jsonl", "recordings/*/*.jsonl", "shapes/session-*.jsonl")
FILES = sorted([file for pattern in SESSIONS for file in SHARED.glob(pattern)])
CLAUDE = [file for file in FILES if file.parent.name == "claude-code"]
DECODERS = {
    "anthropic": anthropic.decode_message,
    "gemini": gemini.decode_message,
    "pi": decode_pi_message,
}


def sealing_model(message):
    """Return the model that sealed parts of a message; empty where none is sealed."""
    models = {part.signature.model for part in message.parts if getattr(part, "signature", None) is not None}
    assert len(models) <= 1
    return models.pop() if models else ""


def digests(recording):
    return [
        entry.body.sized_message.digest
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


if FILES:

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_there_and_back(file):
        """Import, export, import: the same messages in the same order, the same steps, nothing to report."""
        first = read_recording(file.read_bytes(), file.name)
        second = read_recording(export_bytes(first, first.format))
        assert digests(first) == digests(second) != []
        assert [step.usage for step in list_model_calls(first)] == [step.usage for step in list_model_calls(second)]
        assert [build_state_at_leaf(one).view.first_kept for one in (first, second)] == [
            build_state_at_leaf(first).view.first_kept
        ] * 2
        assert second.problems == ()

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_an_export_holds_nothing_new(file):
        """Import, export, import: the log has every entry already."""
        first = read_recording(file.read_bytes(), file.name)
        assert select_new_entries(read_recording(export_bytes(first, first.format)), first.entries).entries == ()

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_wire_bytes_tell_the_message(file):
        """A slot's own bytes decode to its message.

        An item of Codex does not name the model that sealed its reasoning: the rollout does, in ``turn_context``.
        """
        data = file.read_bytes()
        for entry in read_recording(data).entries:
            if not isinstance(entry.body, MessageEntry):
                continue
            slot = entry.body.sized_message
            if slot.api == "openai-responses":
                model = sealing_model(slot.message)
                assert model.encode() in data
                assert decode_codex_item(slot.raw, model) == slot.message
            else:
                assert DECODERS[slot.api](slot.raw) == slot.message

    @pytest.mark.parametrize("file", CLAUDE, ids=[file.name for file in CLAUDE])
    def test_every_message_once_on_the_way(file):
        """All user and assistant lines of these sessions are on the way to the leaf, one step for each message id.

        An answer of ``<synthetic>`` was written by Claude Code itself: it was said, and is no step of a model.
        """
        lines = [json.loads(line) for line in file.read_bytes().split(b"\n") if line]
        said = [line for line in lines if line["type"] in ("user", "assistant") and not line.get("isCompactSummary")]
        users = sum(line["type"] == "user" for line in said)
        models = {line["message"]["id"]: line["message"].get("model") for line in said if line["type"] == "assistant"}
        made_up = sum(model == "<synthetic>" for model in models.values())
        recording = read_recording(file.read_bytes())
        assert len(digests(recording)) == users + len(models)
        assert len(list_model_calls(recording)) == len(models) - made_up

    @pytest.mark.parametrize("file", CLAUDE, ids=[file.name for file in CLAUDE])
    def test_results_stand_behind_their_answer_in_call_order(file):
        """Directly behind each answer come the results of its calls, in order, and no others.

        Calls of the very last message may be open: the recording ended while they ran.
        """
        said = [
            entry.body.sized_message.message
            for entry in get_branch_entries(read_recording(file.read_bytes()))
            if isinstance(entry.body, MessageEntry)
        ]
        for index, message in enumerate(said):
            calls = [call.id for call in message.calls]
            behind = [one.results[0].call_id for one in said[index + 1 : index + 1 + len(calls)] if one.results]
            is_last = index == len(said) - 1
            assert behind == ([] if is_last else calls)
