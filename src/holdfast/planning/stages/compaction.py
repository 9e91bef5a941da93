"""Compaction: when older turns give way to a summary, and whether it is worth it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import media_of
from holdfast.messages.size.tokens import count
from holdfast.messages.user_text import is_real
from holdfast.planning.breaker import failed_often
from holdfast.planning.budget import Room
from holdfast.planning.builder import Draft
from holdfast.planning.extract.summary_builder import anchor_of, stand_in
from holdfast.planning.presets.measures import request_size, shown_messages
from holdfast.planning.presets.overflow_replay import add_overflow_places, as_replay, find_overflow_refusal, find_replay
from holdfast.planning.presets.triggers import is_over, line, passes
from holdfast.planning.settings import LEAST_SUMMARY, SUMMARY_SLACK, Settings
from holdfast.planning.stages.last_resort import RELIEF
from holdfast.planning.stages.pending_results import shorten_unread
from holdfast.planning.stages.smallest_request import told_unread
from holdfast.planning.stages.spill import spill, wholes
from holdfast.planning.stages.tail_selection import cuts, open_turn, tail_size, tails
from holdfast.state.branch.branch import Branch, is_spared
from holdfast.state.branch.turns import newest_answer
from holdfast.state.branch.view import held_for, shown_slots, summary_size
from holdfast.state.plan import Ask
from holdfast.state.target import Written

GROWTH = 1.25
"""How much longer than the summary that it brings up to date one may be, if somebody asks for it early. [H]"""


def compact(draft: Draft) -> Draft:
    """Return the draft with its head summarised, if the request is too big (or it was asked for) and it helps.

    Where somebody writes summaries the draft asks for one, if an extract in its place would be committed. What is asked
    for before there is need is planned as if the room were full, so that it is worth having.
    """
    if not draft.world.compacts or draft.branch.learned.overflows:
        return _compact(draft)
    return replace(_compact(replace(draft, full=_taken(draft))), full=0)


def _taken(draft: Draft) -> int:
    """Return the tokens that messages take, and once more those of a summary among them, so that it may stay."""
    made, target = draft.branch.compaction, draft.target
    earlier = summary_size(made, target.model, target.api) if made is not None else 0
    return int(draft.scale * (held_for(draft.branch, target.model, target.api) + earlier))


def _compact(draft: Draft) -> Draft:
    if not _is_due(draft):
        return draft
    if not draft.world.compacts and (stopped := _stopped(draft)):
        return draft.note("breaker", stopped)
    if not _is_said(draft.branch):
        return draft.note("nothing-to-compact", "nobody said anything yet: blanks and tool traffic are no conversation")
    draft = _retaken(draft)
    if not _is_due(draft):
        return draft
    made = _first(draft, _places(draft))
    waits = draft.settings.tail == "share" and open_turn(draft.branch) < len(draft.branch.slots)
    return _with_unread(draft) if waits and not (_helped(draft, made) or _is_usable(made)) else made


def _with_unread(draft: Draft) -> Draft:
    """Return the draft with the results that the model waits for cut short, so that a request can show them.

    Only where that is not enough they give way as well, and a notice says so.
    """
    room = draft.room
    share = room.share(draft.settings.message_share or draft.settings.goal_share)
    short = shorten_unread(draft, share, goal(draft) - room.share(LEAST_SUMMARY + 2 * SUMMARY_SLACK))
    made = _first(short, _places(short)) if _is_due(short) else short
    if _helped(short, made) or _is_usable(made):
        return made
    folded = _first(draft, [keep for keep in cuts(draft.branch)[-1:] if draft.branch.keep < keep <= _last_place(draft)])
    return told_unread(draft, folded) if _helped(draft, folded) else made


def _helped(old: Draft, new: Draft) -> bool:
    """Return whether ``new`` compacts what ``old`` did not, or waits for the summary with which it will."""
    return new.ask is not None or new.compaction is not old.compaction


def _is_usable(draft: Draft) -> bool:
    return draft.at_most <= draft.room.usable


def _first(draft: Draft, places: Sequence[int]) -> Draft:
    """Return the draft compacted at the first of ``places`` where that helps; with a notice why not, if nowhere."""
    rule, why = "nothing-to-compact", "there is nothing before what is kept as it was said"
    if draft.branch.compaction is not None:
        why = "everything that could be summarised already is"
    written = draft.world.written
    for keep in places:
        planned = _compacted(draft, keep)
        if planned is None:
            continue
        why = _refusal(draft, planned) or find_overflow_refusal(draft, planned, places)
        if not why:
            ask = _ask(draft, keep)
            waits = draft.world.writes and ask.cap and not _fits(written, keep)
            return draft.wait(ask) if waits else planned
        rule = "not-smaller"
    return draft.note(rule, why)


def _is_due(draft: Draft) -> bool:
    """Return whether this policy compacts now; the smallest request there is has a compaction of its own."""
    settings, world = draft.settings, draft.world
    if settings.compact != "summary" or world.rung == "fallback":
        return False
    return world.compacts or (settings.auto and over_trigger(draft))


def _is_said(branch: Branch) -> bool:
    """Return whether there is a real conversation, now or in what gave way before."""
    return branch.compaction is not None or is_real(branch.messages.slice(branch.pinned))


def _retaken(draft: Draft) -> Draft:
    """Return the draft with texts that an undo brought back spilled again, where one alone is more than may be left."""
    branch = draft.branch
    if not (branch.spared and draft.settings.goal_share and draft.world.spill):
        return draft
    shown, most = wholes(branch, shown_slots(branch, branch.keep)), draft.own(goal(replace(draft, full=0)))
    big = [one for one in shown if one.tokens > most and any(is_spared(branch, one.slot, at) for at in one.places)]
    return spill(draft, big, RELIEF)


def _places(draft: Draft) -> list[int]:
    """Return where the kept tail may begin, best first: where it was written for, if it may begin there."""
    branch, written = draft.branch, draft.world.written
    if written is not None and branch.keep < written.stop and written.stop in cuts(branch):
        return [written.stop]
    last = _last_place(draft)
    return add_overflow_places(draft, [keep for keep in tails(draft) if branch.keep < keep <= last])


def _last_place(draft: Draft) -> int:
    """Return where the kept tail begins at the latest: at media of the user that were neither answered nor refused.

    What an image takes is reckoned high; only the provider knows whether it is too much.
    """
    branch, end = draft.branch, len(draft.branch.slots)
    new = newest_answer(branch, branch.keep) + 1
    if branch.learned.overflows or not any(media_of(one) for one in shown_messages(branch, max(new, branch.keep))):
        return end
    return next((at for at in range(max(new, branch.keep), end) if branch.messages[at].starts_turn), end)


def _fits(written: Written | None, keep: int) -> bool:
    return written is not None and written.stop == keep


def _ask(draft: Draft, keep: int) -> Ask:
    """Return the request for a summary of all before ``keep`` that the one in force does not cover."""
    settings, branch, anchor = draft.settings, draft.branch, anchor_of(draft.branch)
    most = min(settings.summary_model_tokens, draft.room.share(settings.summary_model_share))
    if draft.full:
        least = max(3 * settings.summary_least, int(draft.scale * GROWTH * count(anchor)))
        most = min(most, max(least, draft.share(settings.summary_written_share)))
    return Ask(
        branch.keep if anchor else branch.pinned,
        keep,
        settings.summary_tokens or most,
        anchor,
        keep == find_replay(draft),
    )


def _stopped(draft: Draft) -> str:
    """Return why no automatic compaction may run now, or nothing."""
    settings, branch = draft.settings, draft.branch
    tired = failed_often(branch.failures, settings) and not draft.world.cooled
    if not draft.world.breaker:
        return "the request is over its trigger, but no compaction may run by itself now"
    if tired:
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
    return room.frame + room.share(_within(draft, settings.trigger_cold_share if cold else settings.trigger_share))


def _within(draft: Draft, share: float) -> float:
    """Return ``share``, the trigger's, or that of written summaries where it is less and somebody writes them."""
    written = draft.settings.trigger_written_share
    return min(share, written) if written and _is_written(draft) else share


def _is_written(draft: Draft) -> bool:
    """Return whether somebody writes the summaries, or wrote this one."""
    return draft.world.writes or draft.world.written is not None


def _compacted(draft: Draft, keep: int) -> Draft | None:
    """Return the draft with everything before ``keep`` summarised; nothing when no summary would fit."""
    settings, room, written = draft.settings, draft.room, draft.world.written
    share = settings.summary_written_share if _is_written(draft) else summary_share(room, settings)
    cap = settings.summary_tokens or draft.share(share)
    if settings.goal_share:
        tail = draft.scale * tail_size(draft.branch, keep)
        left = int(goal(draft) - tail - draft.share(SUMMARY_SLACK))
        if left < min(cap, draft.share(LEAST_SUMMARY)):
            return None
        cap = min(cap, left)
    made = stand_in(draft, keep, cap, written if _fits(written, keep) else None)
    if made is None:
        return None
    made = as_replay(draft, made)
    return draft.compact(replace(made, after=draft.compact(made).estimate))


def goal(draft: Draft) -> int:
    """Return the tokens of messages that a compaction may leave: with its margin that is not over the trigger again."""
    settings, room = draft.settings, draft.room
    if not settings.trigger_share:
        return min(draft.share(settings.goal_share), max(0, int((trigger(draft) - room.frame) / (1 + settings.margin))))
    return draft.share(min(settings.goal_share, _within(draft, settings.trigger_share) / (1 + settings.margin)))


def summary_share(room: Room, settings: Settings) -> float:
    """Return the share of the room an extract may take: what the agent needs grows more slowly than the room."""
    small, large = settings.summary_small_room, settings.summary_large_room
    way = min(1.0, max(0.0, (room.size - small) / max(1, large - small)))
    return settings.summary_share_small + way * (settings.summary_share - settings.summary_share_small)


def _refusal(before: Draft, after: Draft) -> str:
    """Return why the compaction is not worth committing, or nothing."""
    settings, room = before.settings, before.room
    old, new = before.estimate, after.estimate
    if new >= old and (settings.goal_share or _is_written(before)):
        return f"{new:,} tokens would be left of {old:,}: it would not get smaller"
    if not settings.goal_share:
        return ""
    most = room.frame + goal(before)
    if new > most:
        return f"{new:,} tokens would be left, over the goal of {most:,}"
    gain = max(settings.gain_share * (old - room.frame), min(settings.gain_tokens, room.share(settings.gain_share)))
    if old - new < gain and old <= room.usable and not before.world.compacts:
        return f"it would free {old - new} tokens; {int(gain)} are wanted"
    return ""
