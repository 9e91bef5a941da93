"""What the compactions of opencode and Claude Code do about the turn that they interrupt.

After an overflow the kept tail begins at the user's newest message, which is said again without its media: they may be
what was too large, and a message that waits for its answer must not be lost in a summary. Where the newest message
cannot be kept, and whenever an automatic compaction cuts a turn, the summary ends with a sentence that tells the model
to go on: nothing else in the request does.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.messages.message import Message, media_of
from holdfast.messages.parts import Text
from holdfast.planning.builder import Draft
from holdfast.planning.extract.client_notes import apart
from holdfast.planning.extract.previous_summary import said_by_user
from holdfast.planning.stages.media import media_edits
from holdfast.planning.stages.tail_selection import cuts, open_turn
from holdfast.state.branch.branch import Branch
from holdfast.state.entries import REPLAY, Compaction

CONTINUE = (
    "Go on with the next steps if there are any; if something is unclear, or nothing is left to do, stop and ask."
)
"""[C] The last words behind the summary of an automatic compaction that cut a turn; the wording is ours."""
MEDIA_REMOVED = (
    "Images or documents were taken out of the conversation because they did not fit. If one of them is needed, say"
    " so and ask for a smaller one."
)
"""[C] Stands before ``CONTINUE``, but only where the compaction took media out of sight."""
_CONTINUE_WITHOUT_MEDIA = f"{MEDIA_REMOVED}\n\n{CONTINUE}"
_WHY = "the request was refused as too large: the message is said again without its media"


def is_after_overflow(draft: Draft) -> bool:
    """Return whether this compaction answers an overflow, under a policy that says the newest message again."""
    return draft.settings.overflow_replay and draft.world.rung == "compact"


def find_replay(draft: Draft) -> int | None:
    """Return the slot of the user message that a compaction after an overflow says again, or None.

    There must be something before it to summarise, and it happens once between two answers: a message that was said
    again and refused once more gains nothing by a second time.
    """
    branch = draft.branch
    if not is_after_overflow(draft) or _was_replayed(branch):
        return None
    newest = find_newest_user_message(branch, branch.keep)
    return newest if newest > branch.keep and newest in cuts(branch) else None


def add_overflow_places(draft: Draft, places: Sequence[int]) -> list[int]:
    """Return where a compaction after an overflow may cut: at the message to be said again, else at unread results.

    ``places`` are those of the policy's own rule; they come last, since they may fold what the model has not read.
    """
    if not is_after_overflow(draft):
        return list(places)
    branch = draft.branch
    unread = open_turn(branch)
    first = [place for place in (find_replay(draft), unread) if place is not None and place in cuts(branch)]
    first = [place for place in first if branch.keep < place < len(branch.slots)]
    if _was_replayed(branch) and _waits_first(branch):
        return first
    return list(dict.fromkeys([*first, *places]))


def find_overflow_refusal(before: Draft, after: Draft, places: Sequence[int]) -> str:
    """Return why a cut after an overflow is not made, or nothing: it is no help, or a later place leaves less."""
    if not is_after_overflow(before):
        return ""
    if after.estimate >= before.estimate:
        return f"{after.estimate:,} tokens would be left of {before.estimate:,}: it would not get smaller"
    if after.branch.keep != places[-1] and after.at_most > before.room.usable:
        return f"{after.at_most:,} tokens would be left, and {before.room.usable:,} can be used"
    return ""


def as_replay(draft: Draft, made: Compaction) -> Compaction:
    """Return ``made`` with the media of the message that it says again as words; any other compaction unchanged."""
    if made.keep != find_replay(draft):
        return made
    return replace(made, edits=media_edits(draft, made.keep, _WHY), trigger=REPLAY)


def continuation(draft: Draft, keep: int) -> str:
    """Return what tells the model to go on behind a summary of all before slot ``keep``; mostly nothing.

    Nothing where somebody asked for the compaction, where a hook does not want it, and where no turn is cut.
    """
    world = draft.world
    is_manual = world.force and world.rung != "compact"
    if not draft.settings.auto_continue or not world.continues or is_manual or not _cuts_turn(draft.branch, keep):
        return ""
    return _CONTINUE_WITHOUT_MEDIA if _hides_media(draft.branch, keep) else CONTINUE


def tells_to_continue(made: Compaction) -> bool:
    """Return whether the summary of ``made`` ends with what ``continuation`` returns."""
    last = made.summary.parts[-1] if made.summary is not None and made.summary.parts else None
    return isinstance(last, Text) and last.text in {CONTINUE, _CONTINUE_WITHOUT_MEDIA}


def find_newest_user_message(branch: Branch, start: int) -> int:
    """Return the slot of the newest message in which a user really says something, from slot ``start`` on, or -1."""
    slots = range(len(branch.slots) - 1, start - 1, -1)
    return next((slot for slot in slots if _is_of_user(branch.messages[slot])), -1)


def _is_of_user(message: Message) -> bool:
    """Return whether a user speaks, or shows something: notes and summaries of a client are neither."""
    if not message.starts_turn:
        return False
    words = "\n".join(said_by_user([message]))
    return bool(apart(words)[0]) or bool(media_of(message))


def _was_replayed(branch: Branch) -> bool:
    """Return whether the newest compaction said a message again, and no answer came since."""
    made = branch.compaction
    return branch.compactions > 0 and made is not None and made.trigger == REPLAY


def _waits_first(branch: Branch) -> bool:
    """Return whether the kept tail is what a user said last, and nothing of the agent's."""
    return all(message.role == "user" for message in branch.messages.slice(branch.keep))


def _cuts_turn(branch: Branch, keep: int) -> bool:
    """Return whether a compaction at ``keep`` folds the words that the agent is at work on."""
    last = branch.messages[len(branch.messages) - 1]
    is_done = last.role == "assistant" and not last.calls
    return not is_done and find_newest_user_message(branch, branch.pinned) < keep


def _hides_media(branch: Branch, keep: int) -> bool:
    return any(branch.keep <= slot < keep for slot in branch.pictures)
