"""The policy for callers that want each of their messages back: texts are shortened, but no message goes.

Gateways put the messages that they withheld back between those they sent, by position. So there is no compaction, and
what a message becomes must not depend on where it stands: LiteLLM withholds the newest messages and sends them later,
in the middle of those it sent before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from msgspec.structs import replace

from holdfast.messages.message import Message, get_part_text
from holdfast.messages.parts import Part, Text, ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.pipeline import Policy
from holdfast.planning.stages.order import Stage
from holdfast.planning.stages.spill import replace_result_text
from holdfast.planning.stages.spill_largest import spill_largest_texts
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Edit, Span

RETRIEVE_TOOL = "headroom_retrieve"
"""The tool that gateways offer their model to read a text back."""
KNOWN_ROWS_STAGE, FIT_STAGE = "known-rows", "fit-rows"
_KEPT_STAGES = frozenset({"results", "lines", "media"})
"""Stages of a policy that shorten single new messages. Stages that look at the cache or at turns need messages that a
gateway does not send, and the stage that escapes forged tags makes messages longer."""
FIT_SHARE = 0.7
"""Share of the usable window to which messages are shortened once they no longer fit. Shortening breaks the provider's
cached prefix, so it should not happen again with the next request. Chosen by judgement."""
UNCHECKED_TOKENS = 100_000
"""Tokens beside the messages for which no plan is refused: more than any answer takes."""
KnownRows: TypeAlias = Mapping[bytes, Sequence[Edit]]
"""What messages were shortened to before, by the digest of the message."""


def make_row_policy(policy: Policy, known_rows: KnownRows, *, is_partial: bool) -> Policy:
    """Return ``policy`` for messages that must all come back.

    ``known_rows`` are shown again as they were. Without the answers between them (``is_partial``) messages belong to no
    step of the conversation, so only their own size counts.
    """
    settings = policy.settings.results
    changes: dict[str, object] = {
        "append_chars": 0,  # a text is stored once, by the edit that shortens it
        "spill_exempt_tools": (*settings.spill_exempt_tools, RETRIEVE_TOOL),
    }
    if is_partial:
        changes |= {"message_chars": 0, "message_share": 0.0}
    stages: list[tuple[str, Stage]] = [(KNOWN_ROWS_STAGE, partial(show_known_rows, known_rows=known_rows))]
    stages += [stage for stage in policy.stages if stage[0] in _KEPT_STAGES]
    stages.append((FIT_STAGE, shorten_rows_to_fit))
    return replace(policy.with_settings(results=changes), stages=tuple(stages))


def collect_known_rows(state: ConversationState) -> dict[bytes, Sequence[Edit]]:
    """Return what messages of ``state`` are shortened to, by the digest of the message."""
    known_rows: dict[bytes, Sequence[Edit]] = {}
    for index, edits in state.view.edits.items():
        if all(edit.span.part is not None for edit in edits):
            known_rows[state.history.sized_messages[index].digest] = tuple(edits)
    return known_rows


def show_known_rows(builder: PlanBuilder, known_rows: KnownRows) -> PlanBuilder:
    """Shorten new messages of this branch to what other requests of the session showed of them."""
    state = builder.state
    edits: list[Edit] = []
    if known_rows and builder.inputs.can_spill:
        for index in range(state.last_request.seen_count, len(state.history.sized_messages)):
            for edit in known_rows.get(state.history.sized_messages[index].digest, ()):
                edits.append(replace(edit, span=Span(index, index + 1, edit.span.part)))
    return builder.add_edits(edits)


def shorten_rows_to_fit(builder: PlanBuilder) -> PlanBuilder:
    """Shorten the messages to ``FIT_SHARE`` of the usable window if they exceed it, else do nothing.

    First the largest texts that are still whole become previews, then the oldest previews become lines.
    """
    budget = builder.budget
    # The policies of other tools, whose compactions have no goal, shorten nothing for the sake of space.
    if builder.upper_estimate > budget.usable and builder.settings.compaction.goal_share:
        goal = int(FIT_SHARE * budget.usable)
        builder = replace(spill_largest_texts(replace(builder, budget=replace(budget, usable=goal))), budget=budget)
        excess = builder.to_estimator_tokens(builder.upper_estimate - goal)
        edits: list[Edit] = []
        for edit in _iter_preview_replacements(builder.state):
            if excess <= 0:
                break
            edits.append(edit)
            excess -= edit.saves
        builder = builder.add_edits(edits)
    # What still does not fit is returned all the same: the gateway and its provider know better what may be sent. Under
    # its own limits this plan would be refused.
    limits = builder.target.limits
    unlimited = replace(
        limits, window=max(limits.window, 2 * builder.upper_estimate + UNCHECKED_TOKENS), max_input=None
    )
    return replace(builder, target=replace(builder.target, limits=unlimited))


def _iter_preview_replacements(state: ConversationState) -> Iterator[Edit]:
    """Yield edits that put a line in place of each preview of a stored text, the oldest message first."""
    for index, edits in sorted(state.view.edits.items()):
        newest_edits = {edit.span.part: edit for edit in edits if edit.blob_hash and len(edit.replacement) == 1}
        for part_index, edit in newest_edits.items():
            if part_index is None:
                continue
            whole_text = get_part_text(state.history.messages[index].parts[part_index])
            shown_part = edit.replacement[0]
            if isinstance(shown_part, Message) or hash_text(whole_text) != edit.blob_hash:
                continue
            handle = edit.blob_hash[:HANDLE_CHARS]
            line = f'[{len(whole_text):,} characters left out here; recall(id="{handle}") returns them]'
            new_part: Part = Text(line)
            if isinstance(shown_part, ToolResult):
                new_part = replace_result_text(shown_part, line)
            saves = estimate_text_tokens(get_part_text(shown_part)) - estimate_text_tokens(line)
            if saves > 0:
                why = "the messages did not fit, so a line stands in place of the preview"
                yield build_part_edit(index, part_index, new_part, FIT_STAGE, why, saves, edit.blob_hash)
