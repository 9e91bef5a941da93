"""The plan: what to do before the next request."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.state.branch.branch import Branch
from holdfast.state.edits import Blob, Edit
from holdfast.state.entries import Compaction


class Ask(Struct, frozen=True):
    """A summary the planner wants before it can go on: of slots ``start`` to ``stop``, which give way to it."""

    start: int
    stop: int
    cap: int
    """Real tokens it may have."""
    anchor: str = ""
    """The summary in force, to be brought up to date; ``start`` is then the first slot that it does not cover."""
    is_replay: bool = False
    """Whether the user's newest message is said again behind it, without its media."""


class Options(Struct, frozen=True, omit_defaults=True):
    """What Holdfast sets on the request beside its messages."""

    max_tokens: int | None = None
    markers: tuple[int, ...] = ()
    """Positions in the projected message list that carry a cache breakpoint, behind their last part; where there is
    no room for all, the first ones go first."""
    frame_marker: bool = False
    """Whether the end of the frame (tools and system) carries a breakpoint too."""


class Notice(Struct, frozen=True, omit_defaults=True):
    """Something the caller should know: ``rule`` names it, ``why`` says it with its numbers."""

    rule: str
    why: str


class Plan(Struct, frozen=True):
    """What to do before the next request. An empty plan is common and means "bytes pass through"."""

    branch: Branch
    """The branch with this plan recorded; pass it into the next call."""
    record: tuple[Edit, ...] = ()
    """Edits that last: appended verbatim as one ``decision`` entry before the send; of two for one part, the later is
    sent."""
    compaction: Compaction | None = None
    """To commit before the send, as one record."""
    repair: tuple[Edit, ...] = ()
    """Edits that make this one projection valid; recomputed each time, never stored."""
    options: Options = Options()
    blobs: tuple[Blob, ...] = ()
    """Texts to store before the record that names them."""
    ask: Ask | None = None
    """A summary to be made first: plan again with it as ``World.written``, or without ``World.writes``.

    From the branch that this plan began with: what ``branch`` leaves out to bridge the wait would stay left out."""
    window: int = 0
    """Tokens of the window that was planned for: as told, capped, or as an overflow taught it."""
    before: int = 0
    """Estimated tokens of the request without this plan's new decisions."""
    after: int = 0
    """Estimated tokens of the request as planned."""
    notices: tuple[Notice, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing changes: no new decision, no repair, nothing to ask."""
        return not (self.record or self.repair or self.compaction or self.ask)


def asked_for(plan: Plan) -> Plan:
    """Return ``plan`` with its compaction told as one that somebody asked for: no request was too large."""
    made = plan.compaction
    return plan if made is None else replace(plan, compaction=replace(made, trigger="manual"))
