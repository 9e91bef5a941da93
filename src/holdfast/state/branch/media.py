"""Images and documents that a branch shows: where they stand, how many, and how large they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.messages.message import Message, media_in, media_of
from holdfast.messages.parts import Media
from holdfast.state.branch.view import messages_at, slot_after
from holdfast.state.edits import Edit

if TYPE_CHECKING:
    from holdfast.state.branch.branch import Branch


def with_media(branch: Branch, messages: Iterable[tuple[int, Message]]) -> Branch:
    """Return the branch showing ``messages``, each with its slot, too; those before ``keep`` are pinned."""
    found = [(index, media) for index, message in messages if (media := media_of(message))]
    return _more(branch, [(index, media) for index, media in found if index < branch.pinned or index >= branch.keep])


def recounted(branch: Branch) -> Branch:
    """Return the branch with its media counted anew, over all that it shows."""
    found = [(index, media_of(message)) for index, message in enumerate(branch.messages.slice(0, branch.pinned))]
    index, stop = branch.keep, len(branch.slots)
    while index < stop:
        found.append((index, media_of(*messages_at(branch, index))))
        index = slot_after(branch, index)
    return _more(replace(branch, pictures=(), media=0, media_bytes=0), [one for one in found if one[1]])


def changes_media(branch: Branch, edits: Iterable[Edit]) -> bool:
    """Return whether ``edits`` put media somewhere, or something in the place of media that are said there."""
    for edit in edits:
        start, part = max(edit.span.start, branch.keep), edit.span.part
        said = branch.messages.slice(start, max(edit.span.stop, edit.span.start + 1)) if branch.media else []
        parts = [one for message in said for one in (message.parts if part is None else message.parts[part : part + 1])]
        put = [one for held in edit.put for one in (held.parts if isinstance(held, Message) else (held,))]
        if media_in(*parts, *put):
            return True
    return False


def _more(branch: Branch, found: list[tuple[int, list[Media]]]) -> Branch:
    if not found:
        return branch
    return replace(
        branch,
        pictures=(*branch.pictures, *[index for index, _ in found if index >= branch.keep]),
        media=branch.media + sum(len(media) for _, media in found),
        media_bytes=branch.media_bytes + sum(one.size for _, media in found for one in media),
    )
