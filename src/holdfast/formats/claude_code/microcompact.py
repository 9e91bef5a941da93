"""Results that Claude Code cleared by itself, as its ``microcompact_boundary`` lines tell.

Such a line names calls whose results a fixed text replaces in everything that is sent from there on; the file keeps the
results. It is no compaction: the messages stay, and the chain of links runs through it. Measured in sessions of 2.1.20,
where it names the oldest results that the compaction before has left; a newer version may clear results without any
line, so their absence says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from holdfast.formats.claude_code.tree import ClaudeLinkFields, ClaudeMessageId, ClaudeNode, ClaudeRecord
from holdfast.formats.common.lines import LenientDecoder
from holdfast.messages.message import Message, get_result_text
from holdfast.messages.parts import Text, ToolResult
from holdfast.messages.size.tokens import build_sized_message
from holdfast.planning.stages.prune.prunable_results import CLEARED_RESULT_TEXT
from holdfast.state.edits import Edit, Span

MICROCOMPACT_NOTE = "claude-code:microcompact_boundary"
"""Reason of the note that keeps the line of a microcompaction."""
CLEARED_RULE = "claude-code"
"""Rule of the edits for results that Claude Code cleared."""

L = TypeVar("L", bound=ClaudeLinkFields)
A = TypeVar("A", bound=ClaudeMessageId)


class MicrocompactMetadata(Struct, rename="camel"):
    """What a line says: ids of the calls whose results are cleared, and the tokens that this saves by its own count."""

    compacted_tool_ids: list[str] = []
    tokens_saved: int = 0


MICROCOMPACT_METADATA = LenientDecoder(MicrocompactMetadata)


class ClearedCalls(Struct, frozen=True):
    """The results that a line cleared anew: by call id, the node that holds each; and how many were not found."""

    nodes: dict[str, ClaudeNode]
    missing_count: int


def find_cleared_calls(
    metadata: MicrocompactMetadata,
    ancestors: Iterable[ClaudeNode],
    records: Sequence[ClaudeRecord[L, A]],
) -> ClearedCalls:
    """Return the results named by a line, looked for upwards from it; those that were cleared before are left out."""
    remaining = set(metadata.compacted_tool_ids)
    nodes: dict[str, ClaudeNode] = {}
    for node in ancestors:
        # Most lines name results of the last few hundred messages: the walk ends where the last of them is found.
        if not remaining:
            break
        remaining -= node.cleared_calls
        for call_id in _iterate_result_ids(node, records):
            if call_id in remaining:
                remaining.discard(call_id)
                nodes[call_id] = node
    return ClearedCalls(nodes, len(remaining))


def _iterate_result_ids(node: ClaudeNode, records: Sequence[ClaudeRecord[L, A]]) -> Iterator[str]:
    """Yield the ids of the calls whose results a node holds."""
    if node.kind != "user":
        return
    for index in node.members:
        message = records[index].message
        if message is not None:
            for result in message.results:
                yield result.call_id


def make_clearing_edits(
    message_index: int,
    message: Message,
    cleared_calls: frozenset[str],
    claimed_tokens: int,
) -> Iterator[Edit]:
    """Yield an edit for each result of a message that was cleared; ``claimed_tokens`` is what the tool says to save.

    A result whose text is the placeholder already gets none, as in a file that was written with the results cleared.
    """
    for part_index, part in enumerate(message.parts):
        if not isinstance(part, ToolResult) or part.call_id not in cleared_calls:
            continue
        if get_result_text(part) == CLEARED_RESULT_TEXT:
            continue
        cleared_result = ToolResult(part.call_id, part.name, (Text(CLEARED_RESULT_TEXT),), part.is_error)
        saved_tokens = _count_result_tokens(part) - _count_result_tokens(cleared_result)
        why = f"Claude Code cleared it, with others; by its own count that saved {claimed_tokens:,} tokens"
        yield Edit(
            Span(message_index, message_index + 1, part_index), (cleared_result,), CLEARED_RULE, why, saved_tokens
        )


def _count_result_tokens(result: ToolResult) -> int:
    return build_sized_message(Message("tool", (result,))).tokens
