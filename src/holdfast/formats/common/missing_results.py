"""Results for calls that never got one, for a tool that does not know of the crash that left them.

The tool that recorded such a call tells its model that it was interrupted; another one refuses the session, drops the
call or shows it as done. Only what is written gets these results, never the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.formats.base import Recording, get_branch_entries
from holdfast.formats.repair.tools import MISSING_RESULT_TEXT
from holdfast.messages.message import Message
from holdfast.messages.parts import Text, ToolCall, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.normalize.result_matching import find_results_of_calls
from holdfast.state.entries import (
    AnswerEntry,
    BranchSummaryEntry,
    CompactionEntry,
    DecisionEntry,
    Entry,
    MessageEntry,
    NoteEntry,
)


def add_missing_results(recording: Recording, *, includes_recorded: bool) -> Recording:
    """Return ``recording`` with an error result for each call on the leaf's branch that has none.

    Without ``includes_recorded`` not for calls that a tool recorded itself. A call is left as it is if edits are
    recorded after it: they count messages.
    """
    branch = get_branch_entries(recording)
    missing = _find_missing_calls(branch, includes_recorded=includes_recorded)
    if not missing:
        return recording
    branch_ids = {entry.id for entry in branch}
    entries = {entry.id: entry for entry in recording.entries}
    # Edits and compactions of other branches count messages too, and are not looked through here.
    others = [entry for entry in entries.values() if entry.id not in branch_ids]
    if any(isinstance(entry.body, DecisionEntry | CompactionEntry) for entry in others):
        return recording
    added: dict[str, Entry] = {}
    """The new entries, by the id of the entry that they follow."""
    leaf = recording.leaf
    # From the end, so that the places of earlier calls stay what they are.
    for index in sorted(missing, reverse=True):
        anchor_index = _find_anchor(branch, index)
        later = branch[anchor_index + 1 :]
        if any(_has_edits(entry) for entry in later):
            continue
        anchor = branch[anchor_index]
        results = tuple([_make_missing_result(call) for call in missing[index]])
        body = MessageEntry(build_sized_message(Message("tool", results)))
        entry = Entry(f"{branch[index].id}+interrupted", anchor.id, body, anchor.seq, anchor.time_ms)
        added[anchor.id] = entry
        place = sum(isinstance(item.body, MessageEntry | BranchSummaryEntry) for item in branch[: anchor_index + 1])
        for item in later:
            shifted_body = entries[item.id].body
            if isinstance(shifted_body, CompactionEntry) and shifted_body.first_kept >= place:
                shifted_body = replace(shifted_body, first_kept=shifted_body.first_kept + 1)
                entries[item.id] = replace(entries[item.id], body=shifted_body)
        if later:
            entries[later[0].id] = replace(entries[later[0].id], parent=entry.id)
        else:
            leaf = entry.id
    ordered: list[Entry] = []
    for entry in entries.values():
        ordered.append(entry)
        if entry.id in added:
            ordered.append(added[entry.id])
    return replace(recording, entries=tuple(ordered), leaf=leaf)


def _find_missing_calls(branch: Sequence[Entry], *, includes_recorded: bool) -> dict[int, list[ToolCall]]:
    """Return the calls without a result, by the position of their answer on the branch."""
    positions = [position for position, entry in enumerate(branch) if isinstance(entry.body, MessageEntry)]
    messages = []
    for position in positions:
        body = branch[position].body
        if isinstance(body, MessageEntry):
            messages.append(body.sized_message.message)
    missing: dict[int, list[ToolCall]] = {}
    for index, results in find_results_of_calls(messages).items():
        body = branch[positions[index]].body
        is_recorded = isinstance(body, MessageEntry) and body.recording_envelope is not None
        if is_recorded and not includes_recorded:
            continue
        calls = messages[index].calls
        open_calls = [call for call, result in zip(calls, results, strict=True) if result is None and call.id]
        if open_calls:
            missing[positions[index]] = open_calls
    return missing


def _find_anchor(branch: Sequence[Entry], index: int) -> int:
    """Return the position of the entry after which the results of an answer end: its usage, or other results."""
    anchor = index
    for position in range(index + 1, len(branch)):
        body = branch[position].body
        is_result = isinstance(body, MessageEntry) and body.sized_message.message.role == "tool"
        if is_result or isinstance(body, AnswerEntry):
            anchor = position
        elif not isinstance(body, NoteEntry):
            break
    return anchor


def _has_edits(entry: Entry) -> bool:
    return isinstance(entry.body, DecisionEntry | CompactionEntry) and bool(entry.body.edits)


def _make_missing_result(call: ToolCall) -> ToolResult:
    return ToolResult(call.id, call.name, (Text(MISSING_RESULT_TEXT),), is_error=True)
