"""Which stored conversation a request continues: told from what it says, never from where it comes from.

A key is where to look; the branch found there is the one that says most of the same, message by message. What finds
nothing begins anew: a wrong join would put one conversation's words into another, a missed one costs a cold request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnknownId
from holdfast.model.entries import BranchSummary, Entry, Label, Said
from holdfast.model.messages import Message
from holdfast.model.parts import Opaque, Part, Text, Thinking
from holdfast.model.slots import Slot
from holdfast.policy.settings import Settings
from holdfast.proxy.clients import AGENTS, Client
from holdfast.runtime.following import repeated
from holdfast.store.base import SessionStore
from holdfast.view.tokens import measure
from holdfast.wire.lens import Lens

NAMED = AGENTS | {"aider"}
"""Families of which each request tells whose it is [M]; LangChain's and LiteLLM's do so where they do not stream."""
ROOT = 8
"""[H] Bytes of the digest that a key ends with: a store with a million roots in one scope shares one by 3e-8."""


def session_key(client: Client, lens: Lens) -> str:
    """Return the key of the session that ``lens``, measured, is part of: family, scope and first words.

    The system prompt is not among them, since it changes within a conversation; nor is how the words were cut up, nor
    which library sent them: not every request of one tells, so the API stands in its place.
    """
    first = next((slot for slot in lens.slots if slot.message.role != "system"), next(iter(lens.slots), None))
    root = "empty" if first is None else _root(first)
    family = client.family if client.family in NAMED else lens.api
    return "-".join([part for part in (family, client.scope, root) if part])


def _root(slot: Slot) -> str:
    parts = _plain(slot.message.parts)
    same = len(parts) == len(slot.message.parts)
    return (slot if same and slot.digest else measure(Message(slot.message.role, parts))).digest[:ROOT].hex()


def _plain(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return what is said, words that stand together as one text, without fields that a client may leave out."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, Text) and out and isinstance(out[-1], Text):
            out[-1] = Text(out[-1].text + part.text)
        elif isinstance(part, Text):
            out += [part] if part.text else []
        elif not isinstance(part, Thinking) and not (isinstance(part, Opaque) and part.kind.startswith("message.")):
            out.append(part)
    return tuple(out)


# -- the branch --------------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """What one side said last, without a break, the newest first."""

    newest: Slot
    before: _Run | None

    def slots(self) -> list[Slot]:
        """Return them in order."""
        out, run = [self.newest], self.before
        while run is not None:
            out.append(run.newest)
            run = run.before
        return out[::-1]


class _Reached(Struct, frozen=True, gc=False):
    """How far a conversation follows the path to an entry."""

    repeats: int = 0
    """Messages of it that the path says."""
    open: _Run | None = None
    """What the path says behind those and is not over: the conversation may have it in other pieces."""
    parted: bool = False
    """Whether the path says something else from here on."""


_PARTED = _Reached(parted=True)


def found(store: SessionStore, key: str, slots: Sequence[Slot], settings: Settings) -> str | None:
    """Return the leaf of the branch of session ``key`` that repeats most of ``slots``, the newest among equals.

    Nothing where there is no such session, or no branch of it begins like this. Every entry is looked at once.
    """
    try:
        entries = [entry for entry in store.entries(key) if not isinstance(entry.body, Label)]
    except UnknownId:
        return None
    said = _Conversation(slots, settings)
    parents = {entry.parent for entry in entries}
    reached: dict[str | None, _Reached] = {None: _Reached()}
    most, leaf = 1, None
    for entry in entries:
        reached[entry.id] = said.after(reached.get(entry.parent, _PARTED), entry)
        if entry.id not in parents and (repeats := said.over(reached[entry.id]).repeats) >= most:
            most, leaf = repeats, entry.id
    return leaf


class _Conversation(Struct, frozen=True):
    """A whole conversation that is compared with the paths of a tree, by the rules of ``repeated``."""

    slots: Sequence[Slot]
    settings: Settings

    def after(self, reached: _Reached, entry: Entry) -> _Reached:
        """Return how far it follows the path that goes on with ``entry``."""
        if reached.parted or not isinstance(entry.body, Said | BranchSummary):
            return reached
        slot = entry.body.slot
        if reached.open is not None and reached.open.newest.message.role != slot.message.role:
            reached = self.over(reached)
        if reached.parted:
            return reached
        if reached.open is not None:
            return replace(reached, open=_Run(slot, reached.open))
        return self._next(reached.repeats, slot)

    def over(self, reached: _Reached) -> _Reached:
        """Return how far it follows a path on which nobody says more of what is open."""
        if reached.open is None:
            return reached
        run = reached.open.slots()
        same = repeated(run, self._run(reached.repeats), self.settings)
        return _Reached(reached.repeats + same.count, None, len(same.slots) < len(run))

    def _next(self, repeats: int, slot: Slot) -> _Reached:
        """Return how far it follows the path when ``slot`` is said there behind ``repeats`` messages of it."""
        one = self.slots[repeats : repeats + 1]
        if repeated((slot,), one, self.settings).slots:
            return _Reached(repeats + 1)
        pieces = bool(one) and one[0].message.role == slot.message.role
        return _Reached(repeats, _Run(slot, None)) if pieces else _Reached(repeats, parted=True)

    def _run(self, start: int) -> Sequence[Slot]:
        """Return what one side says from message ``start`` on, without a break."""
        role = self.slots[start].message.role
        there = range(start, len(self.slots))
        stop = next((at for at in there if self.slots[at].message.role != role), len(self.slots))
        return self.slots[start:stop]
