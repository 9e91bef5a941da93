"""The policy of Claude Code: summarize everything, then show the files touched last again."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Annotated, ClassVar

from msgspec.structs import replace

from holdfast.messages.message import Message, get_result_text
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.sized_message import SizedMessage
from holdfast.planning.builder import PlanBuilder
from holdfast.planning.extract.ledger import list_tool_actions
from holdfast.planning.policy_rules import require_rules
from holdfast.planning.presets.common.overflow_replay import OverflowReplayRules
from holdfast.planning.presets.common.request_measures import measure_usage_and_chars
from holdfast.planning.presets.common.reserve_trigger import (
    ReserveTriggerRules,
    apply_reserve_floor,
    compute_effective_window,
)
from holdfast.planning.presets.preset import (
    BARE_COMPACTION,
    BARE_RESULTS,
    BARE_SETTINGS,
    OWN_PRUNE_SETTINGS,
    Preset,
)
from holdfast.planning.settings import (
    Count,
    PruneSettings,
    Seconds,
    Settings,
    SummarizerSettings,
    SummarySettings,
    Tokens,
    describe,
)
from holdfast.planning.stages.order import OWN_STAGES, replace_stages
from holdfast.planning.stages.prune.prunable_results import (
    CLEARED_RESULT_TEXT,
    ShownResult,
    build_clear_edit,
    build_prune_filter,
    find_shown_results,
)
from holdfast.planning.stages.tool_results import build_tool_name_lookup
from holdfast.state.target import ModelLimits

CLEARED_TOOLS = ("Read", "Bash", "PowerShell", "Grep", "Glob", "WebSearch", "WebFetch", "Edit", "Write")
"""Tools whose old results Claude Code clears: their output can be had again by calling them."""
CHARS_PER_TOKEN = 3
"""Characters that Claude Code counts for a token: the usual four, and a third more tokens to be safe."""


class ClaudeCodeRules(OverflowReplayRules, frozen=True):
    """Claude Code's decisions where they differ from ours, and its settings."""

    unused_settings: ClassVar[frozenset[str]] = ReserveTriggerRules.unused_settings | OWN_PRUNE_SETTINGS

    trigger_output: Annotated[
        Tokens, describe("[K] Reserve the model's output for the answer, but no more than this.")
    ] = 20_000
    trigger_reserve: Annotated[
        Tokens, describe("[K] Compact when a request is over the window less the output and this.")
    ] = 13_000
    restore_files: Annotated[
        Count, describe("[K] Show this many of the files touched last again, after the summary.")
    ] = 5
    restore_file_tokens: Annotated[
        Tokens, describe("[K] Largest file that is shown again; of a longer one only the name is shown.")
    ] = 5_000
    prune: Annotated[
        bool, describe("[K] Clear old results of the tools in prune.tools when the cache has expired.")
    ] = True
    prune_idle_seconds: Annotated[
        Seconds, describe("[K] Seconds since the last answer after which the cache has expired.")
    ] = 3_600
    prune_keep_results: Annotated[Count, describe("[K] Never clear this many of the newest results.")] = 5

    def measure_request(self, builder: PlanBuilder) -> int:
        """Return the last answer's usage plus the messages after it, at three characters a token."""
        return measure_usage_and_chars(builder, CHARS_PER_TOKEN)

    def compute_limit(self, limits: ModelLimits, settings: Settings) -> int:
        """Return the tokens above which a request is compacted: the effective window less a reserve."""
        size = compute_effective_window(limits, self.trigger_output) - self.trigger_reserve
        return apply_reserve_floor(size, limits.window, settings)

    def select_tail_starts(
        self,
        builder: PlanBuilder,
        messages: list[Message],
        cut_points: list[int],
    ) -> list[int]:
        """Keep a last user message that waits for its answer, else no message at all."""
        if messages and messages[-1].is_turn_start and len(messages) - 1 in cut_points:
            return [len(messages) - 1]
        return cut_points[-1:]

    def list_restored_files(self, builder: PlanBuilder, head: Sequence[SizedMessage]) -> tuple[str, ...]:
        """Return the files that the agent touched last in the head, as it read them.

        Claude Code does not bound them together. Here they stay within a share of the budget if a goal or an overflow
        demands a smaller request: otherwise they could undo the gain of the compaction.
        """
        settings = builder.settings
        is_bounded = settings.compaction.goal_share or builder.inputs.overflow_step == "compact"
        total_tokens: float = inf
        if is_bounded:
            total_tokens = builder.compute_compaction_share(settings.restore.max_share)
        messages = [sized_message.message for sized_message in head]
        return render_restored_files(
            messages,
            self.restore_files,
            self.restore_file_tokens,
            builder.token_ratio,
            total_tokens,
        )


def render_restored_files(
    head: Sequence[Message],
    max_files: int,
    max_tokens: int,
    token_ratio: float = 1.0,
    total_tokens: float = inf,
) -> tuple[str, ...]:
    """Render the ``max_files`` files of ``head`` that were touched last, newest first, as they were last read.

    A file of more than ``max_tokens`` real tokens, or more than newer ones leave of ``total_tokens``, is only named.
    One that the agent changed after reading it is marked as changed. ``token_ratio`` is the number of real tokens for
    one of the estimator.
    """
    if not max_files:
        return ()
    results = {result.call_id: get_result_text(result) for message in head for result in message.results}
    last_verbs: dict[str, str] = {}
    read_texts: dict[str, str] = {}
    for action in list_tool_actions(head):
        if not action.is_file_action or action.has_failed:
            continue
        last_verbs.pop(action.subject, None)  # put back at the end: the dict is in the order of the last touch
        last_verbs[action.subject] = action.verb
        if action.verb == "read":
            read_texts[action.subject] = results.get(action.call_id, "")
    texts: list[str] = []
    for path in [*reversed(last_verbs)][:max_files]:
        if total_tokens <= 0:
            break
        file_tokens = min(max_tokens, total_tokens) / token_ratio
        text = _render_file(path, last_verbs[path], read_texts.get(path), file_tokens)
        texts.append(text)
        total_tokens -= token_ratio * estimate_text_tokens(text)
    return tuple(texts)


def _render_file(
    path: str,
    last_verb: str,
    text: str | None,
    max_tokens: float,
) -> str:
    """Render a file as it was last read; ``text`` is None if it was only written."""
    if text is None:
        return f"{path} was changed and never read; read it to see it"
    if estimate_text_tokens(text) > max_tokens:
        return f"{path} was read; it is too long to show"
    change_note = ", and changed since" if last_verb == "edit" else ""
    return f"{path} as it was last read{change_note}:\n{text}"


def prune_after_idle(builder: PlanBuilder) -> PlanBuilder:
    """Clear all but the newest results of Claude Code's tools once the last answer is an hour old.

    By then no cache holds the prefix, so clearing costs nothing that is not lost anyway.
    """
    rules = require_rules(builder, ClaudeCodeRules)
    if not rules.prune or builder.inputs.idle_seconds <= rules.prune_idle_seconds:
        return builder
    may_prune = build_prune_filter(builder.settings.prune)
    get_tool_name = build_tool_name_lookup(builder.state)
    clearable_results: list[ShownResult] = []
    for result in find_shown_results(builder.state):
        is_cleared = result.text == CLEARED_RESULT_TEXT
        if not is_cleared and may_prune(get_tool_name(result.message_index, result.result)):
            clearable_results.append(result)
    # Results come newest first.
    edits = [build_clear_edit(result) for result in clearable_results[rules.prune_keep_results :]]
    return builder.add_edits(tuple(edit for edit in edits if edit is not None))


CLAUDE_CODE = Preset(
    "like Claude Code: a model summarizes everything, and recent files are shown again",
    replace(
        BARE_SETTINGS,
        results=replace(
            BARE_RESULTS,
            spill_chars=50_000,
            spill_exempt_tools=("recall", "fetch_result", "Read"),
            preview_end_share=0.0,
            message_chars=200_000,
        ),
        prune=PruneSettings(when=(), tools=CLEARED_TOOLS),
        compaction=replace(BARE_COMPACTION, breaker_failures=3),
        summary=SummarySettings(max_tokens=4_000),
        summarizer=SummarizerSettings(when_too_large="stop"),
    ),
    ClaudeCodeRules(),
    replace_stages(OWN_STAGES, prune=prune_after_idle),
)
