"""Checks on recorded sessions, where present."""

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
CLAUDE_CODE_FILES = [file for file in FILES if file.parent.name == "claude-code"]
DECODERS = {
    "anthropic": anthropic.decode_message,
    "gemini": gemini.decode_message,
    "pi": decode_pi_message,
}


def get_signing_model(message):
    """Return the model that signed parts of a message, or an empty text if none is signed."""
    models = {part.signature.model for part in message.parts if getattr(part, "signature", None) is not None}
    assert len(models) <= 1
    return models.pop() if models else ""


def list_digests(recording):
    return [
        entry.body.sized_message.digest
        for entry in get_full_history_entries(recording)
        if isinstance(entry.body, MessageEntry)
    ]


def list_queued_words(lines):
    """Return what the user typed while Claude Code worked and that no user line repeats.

    Commands begin with a slash, and what programs put into the queue begins with a tag or is JSON.
    """
    user_texts = [line["message"]["content"] for line in lines if line["type"] == "user"]
    queued_texts = [line.get("content", "") for line in lines if line.get("operation") == "enqueue"]
    typed_texts = [text for text in queued_texts if text and text[0] not in "/<{"]
    return [text for text in typed_texts if text not in user_texts]


if FILES:

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_export_and_import_keep_a_session(file):
        """Import, export, import gives the same messages in the same order, the same model calls, and no problems."""
        first = read_recording(file.read_bytes(), file.name)
        second = read_recording(export_bytes(first, first.format))
        assert list_digests(first) == list_digests(second) != []
        assert [step.usage for step in list_model_calls(first)] == [step.usage for step in list_model_calls(second)]
        assert [build_state_at_leaf(recording).view.first_kept for recording in (first, second)] == [
            build_state_at_leaf(first).view.first_kept
        ] * 2
        assert second.problems == ()

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_export_adds_no_entries(file):
        """After import and export the log already has every entry of the export."""
        first = read_recording(file.read_bytes(), file.name)
        assert select_new_entries(read_recording(export_bytes(first, first.format)), first.entries).entries == ()

    @pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
    def test_wire_bytes_decode_to_the_message(file):
        """The wire bytes of a message decode to that message.

        A Codex item does not name the model that signed its reasoning; the rollout does, in ``turn_context``.
        """
        data = file.read_bytes()
        for entry in read_recording(data).entries:
            if not isinstance(entry.body, MessageEntry):
                continue
            sized = entry.body.sized_message
            if sized.api == "openai-responses":
                model = get_signing_model(sized.message)
                assert model.encode() in data
                assert decode_codex_item(sized.raw, model) == sized.message
            else:
                assert DECODERS[sized.api](sized.raw) == sized.message

    @pytest.mark.parametrize("file", CLAUDE_CODE_FILES, ids=[file.name for file in CLAUDE_CODE_FILES])
    def test_claude_code_sessions_contain_every_message_once(file):
        """All user and assistant lines of a session are on the path to the leaf, with one model call per message id,
        and so are words that stand in the queue alone.

        An answer of ``<synthetic>`` was written by Claude Code itself: it is a message but no model call.
        """
        lines = [json.loads(line) for line in file.read_bytes().split(b"\n") if line]
        messages = [
            line for line in lines if line["type"] in ("user", "assistant") and not line.get("isCompactSummary")
        ]
        users = sum(line["type"] == "user" for line in messages)
        models = {
            line["message"]["id"]: line["message"].get("model") for line in messages if line["type"] == "assistant"
        }
        synthetic_count = sum(model == "<synthetic>" for model in models.values())
        queued_words = list_queued_words(lines)
        recording = read_recording(file.read_bytes())
        assert len(list_digests(recording)) == users + len(models) + len(queued_words)
        said = [
            entry.body.sized_message.message.text
            for entry in get_full_history_entries(recording)
            if isinstance(entry.body, MessageEntry)
        ]
        assert [said.count(words) for words in queued_words] == [1] * len(queued_words)
        assert len(list_model_calls(recording)) == len(models) - synthetic_count

    @pytest.mark.parametrize("file", CLAUDE_CODE_FILES, ids=[file.name for file in CLAUDE_CODE_FILES])
    def test_claude_code_results_follow_their_answer_in_call_order(file):
        """Each answer is directly followed by the results of its calls, in order, and by no others.

        Calls of the last message may be open: the recording ended while they ran.
        """
        messages = [
            entry.body.sized_message.message
            for entry in get_branch_entries(read_recording(file.read_bytes()))
            if isinstance(entry.body, MessageEntry)
        ]
        for index, message in enumerate(messages):
            calls = [call.id for call in message.calls]
            result_ids = [
                later.results[0].call_id for later in messages[index + 1 : index + 1 + len(calls)] if later.results
            ]
            is_last = index == len(messages) - 1
            assert result_ids == ([] if is_last else calls)
