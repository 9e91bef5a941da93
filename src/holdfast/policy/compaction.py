"""Compaction: when older turns give way to a summary, and whether it is worth it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.model.entries import Compaction
from holdfast.model.messages import Message
from holdfast.model.parts import Text
from holdfast.model.projected import edited
from holdfast.model.slots import Slot
from holdfast.policy.draft import Draft
from holdfast.policy.extract import Shares, extract
from holdfast.policy.guard import Room
from holdfast.policy.measures import request_size
from holdfast.policy.neutralise import harmless_summary
from holdfast.policy.restored import restored
from holdfast.policy.select import tail_size, tails
from holdfast.policy.settings import LEAST_SUMMARY, SUMMARY_SLACK, Settings
from holdfast.policy.triggers import is_over, line, passes
from holdfast.view.tokens import measure


def compact(draft: Draft) -> Draft:
    """Return the draft with its head summarised, if the request is too big (or it was asked for) and it helps."""
    if draft.settings.compact != "summary" or not (draft.world.force or over_trigger(draft)):
        return draft
    if not draft.world.force and (stopped := _stopped(draft)):
        return draft.note("breaker", stopped)
    refusal = "everything that could be summarised already is"
    for keep in tails(draft):
        if keep <= draft.branch.keep:
            continue
        planned = _compacted(draft, keep)
        if planned is None:
            continue
        refusal = _refusal(draft, planned)
        if not refusal:
            return planned
    return draft.note("not-compacted", refusal)


def _stopped(draft: Draft) -> str:
    """Return why no automatic compaction may run now, or nothing."""
    settings, branch = draft.settings, draft.branch
    if not draft.world.breaker or branch.failures >= settings.breaker_failures:
        return "the request is over its trigger, but compaction failed too often to try again"
    if branch.compactions >= settings.compactions_most:
        return f"the request is over its trigger, but {branch.compactions} compactions ran since the last answer"
    return ""


def over_trigger(draft: Draft) -> bool:
    """Return whether the request as planned is over the size at which this policy compacts."""
    settings, size = draft.settings, request_size(draft)
    if settings.trigger_share:
        return passes(size, trigger(draft), settings)
    return is_over(size, draft.target.limits, settings)


def trigger(draft: Draft) -> int:
    """Return the size in tokens at which this policy compacts; under the frame it can never be met."""
    settings, room = draft.settings, draft.room
    if not settings.trigger_share:
        return line(draft.target.limits, settings)
    cold = draft.world.cache == "cold"
    return room.frame + room.share(settings.trigger_cold_share if cold else settings.trigger_share)


def _compacted(draft: Draft, keep: int) -> Draft | None:
    """Return the draft with everything before ``keep`` summarised; nothing when no summary would fit."""
    branch, settings, room = draft.branch, draft.settings, draft.room
    cap = settings.summary_tokens or room.share(summary_share(room, settings))
    if settings.goal_share:
        tail = draft.scale * tail_size(branch, keep)
        cap = min(cap, int(goal(room, settings) - tail - room.share(SUMMARY_SLACK)))
        if cap < room.share(LEAST_SUMMARY):
            return None
    head = _told(draft, keep)
    if not any(slot.message.text.strip() or slot.message.calls or slot.message.results for slot in head):
        return None  # nothing was really said
    shares = Shares(
        settings.summary_user_share,
        settings.summary_ledger_share,
        settings.summary_decision_share,
        settings.summary_index_share,
    )
    files = restored([slot.message for slot in head], settings.restore_files, settings.restore_tokens, draft.scale)
    said = (Text(extract(head, branch.slots.slice(keep), draft.own(cap), shares)), *files)
    summary = Message("user", tuple(map(Text, harmless_summary([part.text for part in said], branch))))
    made = Compaction(keep, summary, measure(summary).size, before=draft.estimate)
    return draft.compact(replace(made, after=draft.compact(made).estimate))


def goal(room: Room, settings: Settings) -> int:
    """Return the tokens of messages that a compaction may leave: with its margin that is not over the trigger again."""
    return room.share(min(settings.goal_share, settings.trigger_share / (1 + settings.margin)))


def summary_share(room: Room, settings: Settings) -> float:
    """Return the share of the room an extract may take: what the agent needs grows more slowly than the room."""
    small, large = settings.summary_small_room, settings.summary_large_room
    way = min(1.0, max(0.0, (room.size - small) / max(1, large - small)))
    return settings.summary_share_small + way * (settings.summary_share - settings.summary_share_small)


def _told(draft: Draft, keep: int) -> list[Slot]:
    """Return the whole head from the log, with long words of the user as they were shown: spilled, not whole."""
    branch = draft.branch
    head = branch.slots.slice(branch.pinned, keep)
    for index, edits in branch.edits.items():
        if branch.pinned <= index < keep and branch.messages[index].starts_turn:
            head[index - branch.pinned] = edited(branch.slots[index], edits)
    return head


def _refusal(before: Draft, after: Draft) -> str:
    """Return why the compaction is not worth committing, or nothing."""
    settings, room = before.settings, before.room
    old, new = before.estimate, after.estimate
    if not settings.goal_share:
        return ""
    if new >= old:
        return f"{new} tokens would be left of {old}: it would not get smaller"
    most = room.frame + goal(room, settings)
    if new > most:
        return f"{new} tokens would be left, over the goal of {most}"
    gain = max(settings.gain_share * (old - room.frame), min(settings.gain_tokens, room.share(settings.gain_share)))
    if old - new < gain and old <= room.usable and not before.world.force:
        return f"it would free {old - new} tokens; {int(gain)} are wanted"
    return ""
