"""A branch as bytes and back, for a database of somebody's own."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.errors import FormatError
from holdfast.messages.sized_message import Slot
from holdfast.state.branch.view import native_size
from holdfast.state.calibration.calibration import Anchor, Gauge, Learned, Used
from holdfast.state.calibration.model_stats import Known
from holdfast.state.codec.packing import pack, unpack
from holdfast.state.edit_map import Edits
from holdfast.state.edits import Edit, Settled
from holdfast.state.entries import Compaction, Decision, Frame
from holdfast.state.sequence import Seq


class _Dump(Struct, frozen=True):
    """The form in which a branch is written down."""

    slots: tuple[Slot, ...]
    sums: tuple[int, ...]
    marks: tuple[bytes, ...]
    born: tuple[bytes, ...]
    pinned: int
    keep: int
    compaction: Compaction | None
    edits: tuple[tuple[int, tuple[Edit, ...]], ...]
    held: int
    callers: dict[str, int]
    media: int
    media_bytes: int
    open: tuple[str, ...]
    broken: tuple[int, ...]
    frame: Frame
    framed: int
    seen: int
    asked: int
    basis: str
    model: str
    gauge: Gauge
    quiet: int
    compactions: int
    failures: int
    law: tuple[tuple[str, Decision | Compaction], ...]
    settled: Settled | None
    truncations: int = 0
    measured: Anchor | None = None
    answered: Used | None = None
    standing: int = 0
    found: tuple[int, int] = (0, 0)
    spared: dict[int, tuple[int | None, ...]] = {}
    counted: int = 0
    policy: str = ""
    learned: Learned = Learned()
    window: int = 0
    unwritten: int = 0
    failed_at: int | None = None
    aside: tuple[Known, ...] = ()
    api: str = ""
    waiting: tuple[tuple[str, bytes], ...] = ()


_SEQUENCES = ("slots", "sums", "marks", "born")


def dumped(branch: Struct) -> bytes:
    """Return a branch as bytes; wire bytes are kept byte for byte."""
    values: dict[str, Any] = {name: getattr(branch, name) for name in _Dump.__struct_fields__}
    values |= {name: tuple(values[name]) for name in _SEQUENCES}
    callers = values["callers"].copy()  # at once: another thread may go on from here
    values["callers"] = {id_: index for id_, index in callers.items() if index < len(values["slots"])}
    return pack(_Dump(**values | {"edits": tuple(values["edits"].items())}))


def loaded(given: bytes) -> dict[str, Any]:
    """Return the fields of the branch that ``dumped`` wrote; ``FormatError`` for any other bytes."""
    try:
        state = unpack(given, _Dump)
    except (ValueError, TypeError) as error:
        why = f"these are not the bytes of a branch ({error}); give what Branch.dump wrote, or plan without a branch"
        raise FormatError(why) from error
    values: dict[str, Any] = {name: getattr(state, name) for name in state.__struct_fields__}
    values |= {name: Seq(values[name]) for name in _SEQUENCES}
    values["edits"] = Edits(edit for _, edits in state.edits for edit in edits)
    values["native"] = native_size(state.compaction, state.model, state.api)
    values["messages"] = Seq(slot.message for slot in state.slots)
    return values
