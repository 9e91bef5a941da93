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
from holdfast.messages.parts import ToolResult
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import hash_text
from holdfast.planning.builder import PlanBuilder, build_part_edit
from holdfast.planning.extract.constants import HANDLE_CHARS
from holdfast.planning.pipeline import Policy
from holdfast.planning.stages.order import Stage
from holdfast.planning.stages.spill import find_spillable_texts, replace_result_text
from holdfast.planning.stages.spill_largest import spill_largest_texts
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.conversation_state import ConversationState
from holdfast.state.edits import Blob, Edit, Span

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
CLEARED_REASON = "the messages did not fit, and this result is one of the oldest"
"""``why`` of the edits that clear a result."""
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

    First a line takes the place of each tool result but the newest, the oldest first. If that is not enough, the
    largest texts become previews, those of the user too.
    """
    budget = builder.budget
    # The policies of other tools, whose compactions have no goal, shorten nothing for the sake of space.
    is_too_large = builder.upper_estimate > budget.usable and builder.settings.compaction.goal_share > 0
    if is_too_large and builder.inputs.can_spill:
        goal = int(FIT_SHARE * budget.usable)
        excess = builder.to_estimator_tokens(builder.upper_estimate - goal)
        pairs: list[tuple[Edit, Blob | None]] = []
        for edit, blob in _iter_result_clearings(builder):
            if excess <= 0:
                break
            pairs.append((edit, blob))
            excess -= edit.saves
        builder = builder.replace_texts(pairs)
        builder = replace(spill_largest_texts(replace(builder, budget=replace(budget, usable=goal))), budget=budget)
    # What still does not fit is returned all the same: the gateway and its provider know better what may be sent. Under
    # its own limits this plan would be refused.
    limits = builder.target.limits
    window = max(limits.window, 2 * builder.upper_estimate + UNCHECKED_TOKENS)
    return replace(builder, target=replace(builder.target, limits=replace(limits, window=window, max_input=None)))


def _iter_result_clearings(builder: PlanBuilder) -> Iterator[tuple[Edit, Blob | None]]:
    """Yield edits that put a line in place of each tool result, or of its preview, with the text to store.

    The newest message with results is left out: the model works with it.
    """
    state = builder.state
    find_tool_name = build_tool_name_lookup(state)
    newest_index = max((index for index, message in enumerate(state.history.messages) if message.results), default=0)
    for index, message in enumerate(state.history.messages.slice(0, newest_index)):
        whole_texts = {text.part_index: text for text in find_spillable_texts(state, [index]) if not text.part_indexes}
        stored_edits = _get_newest_edits(state, index)
        for part_index, part in enumerate(message.parts):
            if not isinstance(part, ToolResult):
                continue
            if find_tool_name(index, part) in builder.settings.results.spill_exempt_tools:
                continue
            whole_text, stored_edit = whole_texts.get(part_index), stored_edits.get(part_index)
            text = get_part_text(part)
            blob = Blob(hash_text(text), text)
            if whole_text is not None:
                shown_tokens = estimate_text_tokens(text) - whole_text.escape_savings
            elif stored_edit is not None and stored_edit.blob_hash == blob.hash:
                shown_tokens = _measure_replacement(stored_edit)
            else:
                continue
            line = (
                f'[Old result of {len(text):,} characters cleared; recall(id="{blob.hash[:HANDLE_CHARS]}") returns it]'
            )
            saves = shown_tokens - estimate_text_tokens(line)
            if saves > 0:
                new_part = replace_result_text(part, line)
                edit = build_part_edit(index, part_index, new_part, FIT_STAGE, CLEARED_REASON, saves, blob.hash)
                yield edit, None if stored_edit is not None else blob


def _get_newest_edits(state: ConversationState, index: int) -> dict[int, Edit]:
    """Return the edit in force of each part of message ``index`` that a stored text stands behind."""
    newest_edits: dict[int, Edit] = {}
    for edit in state.view.edits.get(index, ()):
        if edit.span.part is not None and edit.blob_hash:
            newest_edits[edit.span.part] = edit
    return newest_edits


def _measure_replacement(edit: Edit) -> int:
    """Return the estimator tokens of the texts that ``edit`` shows."""
    tokens = 0
    for part in edit.replacement:
        if not isinstance(part, Message):
            tokens += estimate_text_tokens(get_part_text(part))
    return tokens
