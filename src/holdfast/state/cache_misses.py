"""Why a request read less from the provider's prompt cache than it could have: derived from the log, without I/O.

A request is compared with the ones before it in its session. What an earlier request had in the cache, and the new one
sends again, can be read from there; if the provider read clearly less, that is a *miss*, and it has one cause:

=============== ======================================================================================================
``expired``     more time passed than the cache keeps an entry
``model``       another model, or another provider
``tools``       the system prompt or the tools changed, or an option that parts the cache (thinking)
``decision``    a decision of ours changed what is shown: pruning, a compaction, an undo
``client-edit`` the client changed or removed earlier messages
``unknown``     none of these: the log shows the same prefix, in time
``unreported``  not a known miss: the provider reports nothing about its cache
=============== ======================================================================================================

Where several apply, the first of these wins: a cold cache is empty whatever changed meanwhile, and what stands earlier
in the prompt breaks everything after it.

A request that begins like the one before it is judged in constant time. Only where something changed, both requests are
compared message by message, which costs less than building one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.messages.message import Message
from holdfast.messages.parts import Part, Text, Thinking, ToolCall, ToolResult, strip_wire_bytes
from holdfast.messages.size.tokens import build_sized_message
from holdfast.messages.sized_message import SizedMessage
from holdfast.messages.text.counts import format_count
from holdfast.state.calibration.usage import get_cache_lifetime
from holdfast.state.conversation_state import ConversationState
from holdfast.state.entries import CompactionEntry, DecisionEntry, Usage
from holdfast.state.target import CacheRules
from holdfast.state.view import build_projection, compute_prefix_digest_at, list_projection_origins

CacheMissCause: TypeAlias = Literal["decision", "client-edit", "expired", "model", "tools", "unknown", "unreported"]
"""Why a request missed the cache, as the docstring of this module says."""
UNREPORTED: CacheMissCause = "unreported"
CACHE_MISS_CAUSES: tuple[CacheMissCause, ...] = get_args(CacheMissCause)

# The smallest prefix that most providers cache. A smaller miss costs a fraction of a cent and is mostly rounding.
MIN_MISS_TOKENS = 1_024
"""Tokens below which a difference is not called a miss."""
# The provider's own counts of two requests are exact, but caches are read in steps and tail ends differ. Chosen by
# judgement; a miss of less than a twentieth changes no bill that anybody would look into.
MISS_SHARE = 0.05
"""Share of the expected tokens below which a difference is not called a miss, if the prefix did not change."""
# Which part of a changed request is repeated, we only estimate: 95 % of our calibrated estimates are within 4 % for
# whole requests (docs/estimator.md), but single messages are off by more.
ESTIMATED_MISS_SHARE = 0.15
"""The same share where the expected tokens are an estimate, because the prefix changed."""
# Without the size of the setup, all of it would be taken for messages. The factor is the largest difference between
# tokenizers of one text that docs/estimator.md reports for prose and code, rounded up.
MAX_RATIO_WITHOUT_SETUP = 1.5
"""Most real tokens for an estimated one that are believed if nobody knows the size of system prompt and tools."""
# A client sends titles, checks and subagents between two requests of its main conversation: rarely more than these.
RECENT_REQUESTS = 4
"""How many of the last requests of a session a new one is compared with."""


class AnsweredRequest(Struct, frozen=True):
    """A request with its answer's usage, as far as the provider's cache is concerned."""

    id: str
    """The id of its entry."""
    state: ConversationState
    """The state at its entry: what it showed, and the model it went to."""
    sent_at: int | None
    """When it was sent, in ms since 1970."""
    usage: Usage
    """What its answer reported; ``input`` is 0 if it reported nothing."""

    @property
    def message_count(self) -> int:
        """How many messages of the history it covers."""
        return min(self.state.last_request.seen_count, len(self.state.history.sized_messages))

    @property
    def place(self) -> tuple[str, str]:
        """The API and the model it went to, which have a cache of their own."""
        return self.state.last_request.api, self.state.last_request.model


class FirstDifference(Struct, frozen=True):
    """The first place where two requests differ."""

    message: int
    """The number of the message, as ``holdfast show`` prints it; of the first one replaced, if a summary differs."""
    part: int
    """The index of the part in that message."""
    byte: int
    """Bytes (UTF-8) before the difference: in the text of the part, or in its arguments; of other parts in its JSON."""


class CacheMiss(Struct, frozen=True, omit_defaults=True):
    """A request that read clearly less from the cache than it could have. Tokens are the provider's."""

    cause: CacheMissCause
    missed_tokens: int = 0
    """Tokens that an earlier request had in the cache, and that were processed again; an estimate after a change.

    What a decision puts in place of messages counts with them: a summary is written to the cache because of it.
    """
    expected_tokens: int = 0
    """Tokens that could have been read."""
    read_tokens: int = 0
    """Tokens that were read."""
    previous_request: str = ""
    """The id of the request that had them in the cache."""
    idle_seconds: float | None = None
    """Time between the two requests; None if the log does not say."""
    lifetime_seconds: int = 0
    """How long the provider's cache keeps an entry after its last use."""
    decision: str = ""
    """The entry of the decision or compaction (cause ``decision``); of the undone one, for an undo."""
    rule: str = ""
    """The rule of that decision, ``compaction`` or ``undo``."""
    difference: FirstDifference | None = None
    """The first place where the two requests differ; None if they do not, or only before the messages."""
    models: tuple[str, ...] = ()
    """The model before and the model now (cause ``model``)."""
    fields: tuple[str, ...] = ()
    """The fields that changed (cause ``tools``); empty if the log does not say which, as older ones do not."""
    is_setup_recorded: bool = True
    """Whether the log knows system prompt and tools; logs of other tools do not, so a change of them is ``unknown``."""
    new_blocks: int = 0
    """Content blocks since the earlier request, if they are more than the provider looks back (cause ``unknown``)."""


class CacheHistory(Struct, frozen=True):
    """What has to be known of the earlier requests of a session to judge the next one."""

    recent: tuple[AnsweredRequest, ...] = ()
    """The newest requests of all branches, newest first."""
    reporting: frozenset[tuple[str, str]] = frozenset()
    """The APIs and models that have ever reported tokens read from a cache or written to it."""


def judge_cache_use(
    history: CacheHistory,
    request: AnsweredRequest,
    rules: CacheRules,
    previous_on_branch: AnsweredRequest | None = None,
) -> tuple[CacheMiss | None, CacheHistory]:
    """Return the miss of ``request``, or None, and the history with it added.

    ``previous_on_branch`` is the newest request before it on its own branch, which may be older than all recent ones.
    ``rules`` are those of the provider that it went to.
    """
    reporting = history.reporting
    for answered in (request, previous_on_branch):
        if answered is not None and (answered.usage.cache_read or answered.usage.cache_write):
            reporting = reporting | {answered.place}
    recent = (request, *history.recent)[:RECENT_REQUESTS]
    updated_history = CacheHistory(recent, reporting)
    is_first = previous_on_branch is None and not history.recent
    is_too_small = 0 < request.usage.input < rules.min_prefix_tokens
    if is_first or is_too_small:
        return None, updated_history
    if not request.usage.input or request.place not in reporting:
        return CacheMiss(UNREPORTED), updated_history
    if _is_read_by_own_model(history, request, rules):
        return None, updated_history
    candidates = list(history.recent)
    if previous_on_branch is not None and all(previous_on_branch.id != candidate.id for candidate in candidates):
        candidates.append(previous_on_branch)
    for candidate in candidates:
        miss = find_cache_miss(candidate, request, rules)
        if miss is not None:
            return miss, updated_history
        # Nothing that an older request showed can be in this one without being in its predecessor too.
        if previous_on_branch is not None and candidate.id == previous_on_branch.id:
            break
    return None, updated_history


def _is_read_by_own_model(history: CacheHistory, request: AnsweredRequest, rules: CacheRules) -> bool:
    """Return whether ``request`` went back to an earlier model, and read all that this model had in its cache."""
    if not history.recent or not _has_other_place(history.recent[0], request):
        return False
    for candidate in history.recent:
        if candidate.place == request.place and _has_same_prefix(candidate, request):
            return find_cache_miss(candidate, request, rules) is None
    return False


def find_cache_miss(before: AnsweredRequest, after: AnsweredRequest, rules: CacheRules) -> CacheMiss | None:
    """Return the miss of ``after``, if it sends again what ``before`` had in the cache and read clearly less.

    Each cause is looked for in the order of the module's docstring. Messages are compared only if a prefix changed.
    """
    usage = after.usage
    cached_tokens = _count_cached_tokens(before.usage, rules)
    upper_bound = min(cached_tokens, usage.input)
    if _find_missed_tokens(upper_bound, usage.cache_read, MISS_SHARE) == 0:
        return None
    comparison = None
    expected_tokens, share = upper_bound, MISS_SHARE
    common_tokens = upper_bound
    if not _has_same_prefix(before, after):
        comparison = _compare_requests(before.state, after.state)
        ratio = _compute_token_ratio(after)
        expected_tokens = min(upper_bound, max(0, usage.input - round(ratio * comparison.new_tokens)))
        common_tokens = min(upper_bound, max(0, usage.input - round(ratio * comparison.tokens_after_common)))
        share = ESTIMATED_MISS_SHARE
    missed_tokens = _find_missed_tokens(expected_tokens, usage.cache_read, share)
    if not missed_tokens:
        return None

    idle_seconds = None
    if before.sent_at is not None and after.sent_at is not None:
        idle_seconds = max(0, after.sent_at - before.sent_at) / 1_000
    miss = CacheMiss(
        "unknown",
        missed_tokens=missed_tokens,
        expected_tokens=expected_tokens,
        read_tokens=usage.cache_read,
        previous_request=before.id,
        idle_seconds=idle_seconds,
        lifetime_seconds=get_cache_lifetime(after.state, rules),
        difference=comparison.difference if comparison is not None else None,
        is_setup_recorded=bool(after.state.setup.digest),
    )
    if _has_expired(miss, common_tokens):
        return replace(miss, cause="expired")
    if _has_other_place(before, after):
        models = tuple("/".join(filter(None, request.place)) for request in (before, after))
        if before.place[1] != after.place[1]:
            models = (before.place[1], after.place[1])
        return replace(miss, cause="model", models=models)
    changed_fields = _list_changed_setup_fields(before.state, after.state)
    if changed_fields or before.state.setup.digest != after.state.setup.digest:
        return replace(miss, cause="tools", fields=changed_fields)
    if comparison is None:
        return replace(miss, new_blocks=_count_blocks_out_of_reach(before, after, rules))
    return _explain_changed_messages(miss, comparison, before.state, after.state)


def _count_cached_tokens(usage: Usage, rules: CacheRules) -> int:
    """Return how many tokens of a request are in the cache once it was answered."""
    reported_tokens = usage.cache_read + usage.cache_write
    # An automatic cache keeps every prompt, but most of them report only what was read.
    if rules.is_automatic and not usage.cache_write and usage.input >= rules.min_prefix_tokens:
        step = max(1, rules.step_tokens)
        return max(reported_tokens, usage.input // step * step)
    return reported_tokens


def _find_missed_tokens(expected: int, read: int, share: float) -> int:
    """Return the expected tokens that were not read; 0 if they are too few to be called a miss."""
    missed = expected - read
    return missed if missed >= max(MIN_MISS_TOKENS, share * expected) else 0


def _has_same_prefix(before: AnsweredRequest, after: AnsweredRequest) -> bool:
    """Return whether ``after`` begins with all that ``before`` showed. Digests are chained, so this looks at one."""
    count = before.message_count
    if count > len(after.state.history.sized_messages):
        return False
    return compute_prefix_digest_at(before.state, count) == compute_prefix_digest_at(after.state, count)


def _has_other_place(before: AnsweredRequest, after: AnsweredRequest) -> bool:
    """Return whether two requests went to different models or APIs; older logs name no API, some no model."""
    pairs = zip(before.place, after.place, strict=True)
    return any(old and new and old != new for old, new in pairs)


def _compute_token_ratio(request: AnsweredRequest) -> float:
    """Return the provider's tokens for each estimated one, in this request."""
    estimated_tokens = request.state.view.shown_tokens + request.state.setup.tokens
    ratio = request.usage.input / max(1, estimated_tokens)
    if not request.state.setup.tokens:
        return min(ratio, MAX_RATIO_WITHOUT_SETUP)
    return ratio


def _has_expired(miss: CacheMiss, common_tokens: int) -> bool:
    """Return whether the time alone explains ``miss``.

    A provider may keep entries longer than it promises. If it still read what both requests have in common, the cache
    was there, and something else broke the rest.
    """
    if miss.idle_seconds is None or miss.idle_seconds <= miss.lifetime_seconds:
        return False
    was_alive = miss.read_tokens > 0 and not _find_missed_tokens(common_tokens, miss.read_tokens, ESTIMATED_MISS_SHARE)
    return not was_alive


def _list_changed_setup_fields(before: ConversationState, after: ConversationState) -> tuple[str, ...]:
    """Return the names of the fields before the messages that differ; none if one of the logs does not have them."""
    old_digests, new_digests = dict(before.setup.field_digests), dict(after.setup.field_digests)
    # A setup without any field has no digest either; one with a digest and no fields is of an older version.
    is_recorded = all(state.setup.field_digests or not state.setup.digest for state in (before, after))
    if not is_recorded:
        return ()
    names = dict.fromkeys((*old_digests, *new_digests))
    return tuple(name for name in names if old_digests.get(name) != new_digests.get(name))


def _count_blocks_out_of_reach(before: AnsweredRequest, after: AnsweredRequest, rules: CacheRules) -> int:
    """Return how many content blocks came since ``before``, if the provider does not look back so far; else 0."""
    if rules.is_automatic or rules.lookback is None:
        return 0
    new_messages = after.state.history.messages.slice(before.message_count)
    blocks = sum(len(message.parts) for message in new_messages)
    return blocks if blocks > rules.lookback else 0


# -- comparing two requests --------------------------------------------------------------------------------------------


class _Comparison(Struct, frozen=True):
    """What the second of two requests repeats of the first, in estimated tokens."""

    new_tokens: int
    """Tokens of the second request that stand for nothing in the first: said since, or edited by the client."""
    tokens_after_common: int
    """Tokens of the second request after the first difference."""
    difference: FirstDifference | None
    """None if only the setup differs."""
    origins: tuple[int, int]
    """The numbers of the messages that differ, in both requests; -1 for a summary, -2 for the end of the request."""


_SUMMARY_ORIGIN = -1
_END_ORIGIN = -2


def _compare_requests(before: ConversationState, after: ConversationState) -> _Comparison:
    """Compare what two states show, message by message."""
    old_messages, new_messages = build_projection(before), build_projection(after)
    common_count = 0
    for old, new in zip(old_messages, new_messages, strict=False):
        if old is not new and old.digest != new.digest:
            break
        common_count += 1
    known_digests = Counter(message.digest for message in _list_known_messages(before, old_messages[common_count:]))
    tokens_after_common = new_tokens = 0
    origins = list_projection_origins(after)
    for message, origin in zip(new_messages[common_count:], origins[common_count:], strict=True):
        tokens = _measure_message(message)
        tokens_after_common += tokens
        if not _take_known_message(known_digests, after, message, origin):
            new_tokens += tokens
    if before.setup.digest != after.setup.digest:
        # What stands before the messages is new, and nothing after it can be read.
        new_tokens += after.setup.tokens
        common_tokens = sum(_measure_message(message) for message in new_messages[:common_count])
        tokens_after_common += common_tokens + after.setup.tokens
    if common_count == len(old_messages):
        return _Comparison(new_tokens, tokens_after_common, None, (_END_ORIGIN, _END_ORIGIN))
    old_origin = list_projection_origins(before)[common_count]
    new_origin, new_message = _END_ORIGIN, None
    if common_count < len(new_messages):
        new_origin = origins[common_count]
        new_message = new_messages[common_count].message
    difference = _locate_difference(old_messages[common_count].message, new_message)
    number = max(old_origin, new_origin) if old_origin == _SUMMARY_ORIGIN else old_origin
    if number < 0:
        number = before.view.pinned_count
    return _Comparison(
        new_tokens,
        tokens_after_common,
        replace(difference, message=number),
        (old_origin, new_origin),
    )


def _list_known_messages(state: ConversationState, shown: Sequence[SizedMessage]) -> list[SizedMessage]:
    """Return the messages ``shown``, and the ones behind those of them that edits changed."""
    said = []
    for index, edits in state.view.edits.iter_from(state.view.first_kept):
        stops = [edit.span.stop for edit in edits if edit.span.part is None]
        said += state.history.sized_messages.slice(index, max(stops, default=index + 1))
    return [*shown, *said]


def _take_known_message(
    known_digests: Counter[bytes], state: ConversationState, message: SizedMessage, origin: int
) -> bool:
    """Return whether a message that ``state`` shows is one of the known ones, and take it from them if so.

    A summary, and the shorter text of an edit, stand for messages that were known: without the decision nothing of
    them would have been processed again.
    """
    if origin == _SUMMARY_ORIGIN:
        return True
    for digest in (message.digest, state.history.sized_messages[origin].digest):
        if known_digests[digest] > 0:
            known_digests[digest] -= 1
            return True
    return False


def _measure_message(message: SizedMessage) -> int:
    return message.tokens or build_sized_message(message.message).tokens


def _locate_difference(old: Message, new: Message | None) -> FirstDifference:
    """Return the first part and byte in which two messages differ; the beginning if their roles do."""
    if new is None or old.role != new.role:
        return FirstDifference(0, 0, 0)
    for index, (old_part, new_part) in enumerate(zip(old.parts, new.parts, strict=False)):
        byte = _find_differing_byte(old_part, new_part)
        if byte is not None:
            return FirstDifference(0, index, byte)
    return FirstDifference(0, min(len(old.parts), len(new.parts)), 0)


def _find_differing_byte(old: Part, new: Part) -> int | None:
    """Return how many bytes two parts have in common, or None if they are equal."""
    for old_bytes, new_bytes in zip(_list_part_bytes(old), _list_part_bytes(new), strict=False):
        if old_bytes != new_bytes:
            return _count_common_bytes(old_bytes, new_bytes)
    return None


def _list_part_bytes(part: Part) -> Sequence[bytes]:
    """Return the bytes of a part: first its text, or its arguments, by which people find the place, then all of it."""
    encoded = msgspec.json.encode(strip_wire_bytes(part))
    if isinstance(part, Text | Thinking):
        return part.text.encode("utf-8", "surrogatepass"), encoded
    if isinstance(part, ToolCall):
        return part.arguments.encode("utf-8", "surrogatepass"), encoded
    if isinstance(part, ToolResult):
        text = "".join(inner.text for inner in part.content if isinstance(inner, Text))
        return text.encode("utf-8", "surrogatepass"), encoded
    return encoded, encoded


def _count_common_bytes(old: bytes, new: bytes) -> int:
    """Return how many bytes both begin with in common, by bisection: comparing slices is fast."""
    low, high = 0, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# -- whose change it was -----------------------------------------------------------------------------------------------


def _explain_changed_messages(
    miss: CacheMiss, comparison: _Comparison, before: ConversationState, after: ConversationState
) -> CacheMiss:
    """Return ``miss`` as caused by the client or by a decision, whichever changed the first message that differs."""
    if miss.difference is None:
        return miss
    edited_index = _find_edited_message(before, after, comparison.origins)
    if edited_index is not None:
        if _is_leading_system_message(before, after, edited_index):
            return replace(miss, cause="tools", fields=("system messages",))
        difference = miss.difference
        if edited_index != difference.message:
            difference = _locate_history_difference(before, after, edited_index)
        return replace(miss, cause="client-edit", difference=difference)
    decision, rule = _find_new_decision(before, after, comparison.origins[0])
    if not decision:
        return miss
    return replace(miss, cause="decision", decision=decision, rule=rule)


def _find_edited_message(before: ConversationState, after: ConversationState, origins: tuple[int, int]) -> int | None:
    """Return the number of the first message that the client changed, or None if a decision changed the request first.

    ``origins`` are the messages of both requests at their first difference.
    """
    old_origin, new_origin = origins
    if old_origin >= 0 and new_origin in (old_origin, _END_ORIGIN):
        return old_origin if _has_other_message(before, after, old_origin) else None
    # The first difference is a summary, or a cut. A client that edits what a summary replaced gets the summary undone
    # with it, so its edit is the cause. What only the log has (a gap) was not read, and so was not edited.
    head_stop = max(before.view.first_kept, after.view.first_kept)
    try:
        for index in range(min(head_stop, len(before.history.sized_messages))):
            if _has_other_message(before, after, index):
                return index
    except LookupError:
        return None
    return None


def _has_other_message(before: ConversationState, after: ConversationState, index: int) -> bool:
    """Return whether message ``index`` is another one, or none, in the later conversation."""
    if index >= len(after.history.sized_messages):
        return True
    return before.history.sized_messages[index].digest != after.history.sized_messages[index].digest


def _is_leading_system_message(before: ConversationState, after: ConversationState, index: int) -> bool:
    return index < before.view.pinned_count or index < after.view.pinned_count


def _locate_history_difference(before: ConversationState, after: ConversationState, index: int) -> FirstDifference:
    """Return where message ``index`` differs, as it was said."""
    new_message = None
    if index < len(after.history.messages):
        new_message = after.history.messages[index]
    return replace(_locate_difference(before.history.messages[index], new_message), message=index)


def _find_new_decision(before: ConversationState, after: ConversationState, origin: int) -> tuple[str, str]:
    """Return the entry and the rule that changed message ``origin`` of ``before`` (-1: its summary), or empty strings.

    A decision that is only in the earlier state was undone.
    """
    made = _list_missing_decisions(after, before)
    undone = _list_missing_decisions(before, after)
    for is_undo, decisions in ((False, made), (True, undone)):
        for id_, body in reversed(decisions):
            rule = _find_rule_for_message(body, origin)
            if rule:
                return id_, "undo" if is_undo else rule
    return "", ""


def _list_missing_decisions(
    state: ConversationState, other: ConversationState
) -> list[tuple[str, DecisionEntry | CompactionEntry]]:
    """Return the decisions in force in ``state`` but not in ``other``; a fork's copies have other ids."""
    other_ids = {id_ for id_, _ in other.view.active_decisions}
    missing = [(id_, body) for id_, body in state.view.active_decisions if id_ not in other_ids]
    if not missing:
        return []
    other_bodies = [body for _, body in other.view.active_decisions]
    return [(id_, body) for id_, body in missing if body not in other_bodies]


def _find_rule_for_message(body: DecisionEntry | CompactionEntry, origin: int) -> str:
    """Return the rule by which ``body`` changes message ``origin``; ``compaction`` if it replaces it by a summary."""
    if isinstance(body, CompactionEntry) and origin < body.first_kept:
        return "compaction"
    for edit in body.edits:
        if edit.span.covers(origin):
            return edit.rule
    return ""


# -- in words ----------------------------------------------------------------------------------------------------------


def describe_cache_miss(miss: CacheMiss) -> str:
    """Describe ``miss`` in one sentence, with its numbers."""
    if miss.cause == UNREPORTED:
        return "the provider reported nothing about its cache"
    about = "about " if miss.difference is not None else ""
    head = (
        f"{miss.read_tokens:,} tokens were read from the cache where {about}{miss.expected_tokens:,} could have been, "
        f"so {miss.missed_tokens:,} were processed again"
    )
    return f"{head}: {_describe_cause(miss)}"


def _describe_cause(miss: CacheMiss) -> str:
    match miss.cause:
        case "expired":
            idle, lifetime = format_idle_time(miss.idle_seconds), format_idle_time(miss.lifetime_seconds)
            return f"{idle} passed since the request before, and the cache keeps an entry for {lifetime}"
        case "model":
            old, new = (name or "an unnamed model" for name in miss.models)
            return f"the request before went to {old}, this one to {new}"
        case "tools":
            what = "the system prompt or the tools"
            if miss.fields:
                what = " and ".join(miss.fields)
            return f"{what} changed, and the cache of what follows holds only for the same"
        case "decision":
            return f"decision {miss.decision[:8]} ({miss.rule}) changed {_describe_difference(miss.difference)}"
        case "client-edit":
            return f"the client changed {_describe_difference(miss.difference)}"
    return f"the cause is not known: {_describe_unknown_cause(miss)}"


def _describe_unknown_cause(miss: CacheMiss) -> str:
    """Describe what the log says about a miss without a cause."""
    clauses = ["nothing that the log records changed"]
    if miss.difference is not None:
        clauses = [f"no decision explains the change of {_describe_difference(miss.difference)}"]
    if not miss.is_setup_recorded:
        clauses.append("it does not record system prompt and tools")
    if miss.idle_seconds is not None:
        lifetime = format_idle_time(miss.lifetime_seconds)
        clauses.append(f"{format_idle_time(miss.idle_seconds)} passed, and the cache keeps an entry for {lifetime}")
    if miss.new_blocks:
        blocks = format_count(miss.new_blocks, "content block")
        clauses.append(f"{blocks} were added at once, which is more than the provider looks back")
    return "; ".join(clauses)


def _describe_difference(difference: FirstDifference | None) -> str:
    if difference is None:
        return "what is shown"
    return f"message {difference.message} first, from byte {difference.byte:,} of its part {difference.part} on"


def format_idle_time(seconds: float | None) -> str:
    """Format a time in the largest unit that gives at least two of it, with one decimal below ten."""
    if seconds is None:
        return ""
    for unit, size in (("hour", 3_600), ("minute", 60)):
        count = seconds / size
        if count >= 2:
            number = f"{count:,.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"
            return f"{number} {unit}s"
    return format_count(round(seconds), "second")
