"""Every error Holdfast raises on purpose.

::

    HoldfastError
    ├── WindowTooSmall (ValueError)     the window cannot hold what must be sent
    ├── UnknownPolicy (LookupError)     no preset has this name
    ├── FormatError (ValueError)        a file or a body is not what it should be
    │   └── UnrecognizedContent         no reader knows this content
    ├── ConfigError (ValueError)        a setting has a wrong name or value
    ├── InvalidRequest (ValueError)     the request breaks a rule of its API; nothing was sent
    ├── UpstreamError                   a provider refused a request, or did not answer
    │   └── ContextOverflow             it is too large, and nothing that could be left out is left
    ├── CompactionFailed                no summary came, or it did not make the request smaller; nothing was written
    ├── OperationAborted                the work was stopped before it ended
    │   ├── LaneCleared                 it was taken out of its lane before it began
    │   ├── LaneClosed                  no new work is taken any more
    │   └── DeadlineExceeded (TimeoutError)   it had its time
    └── StoreError (OSError)            the store cannot be read or written
        ├── StoreLocked                 somebody else is writing this session
        ├── StoreReadOnly               the disk refused a write; nothing more is written
        ├── QuotaExceeded               the store, or a session of it, would grow over its limit; nothing was written
        ├── StoreCorrupt                the database is damaged or of a newer version
        │   └── StoreReplaced           its file was taken away, or another one put in its place
        ├── UnknownId (LookupError)     no session, entry or blob has this name, or several begin with it
        └── LogConflict (ValueError)    the entries would break the log; nothing was written

Each message says what happened, the numbers, and one thing to do.
"""

from __future__ import annotations

from types import NoneType
from typing import Any, get_args

__all__ = [
    "CompactionFailed",
    "ConfigError",
    "ContextOverflow",
    "DeadlineExceeded",
    "FormatError",
    "HoldfastError",
    "InvalidRequest",
    "LaneCleared",
    "LaneClosed",
    "LogConflict",
    "OperationAborted",
    "QuotaExceeded",
    "StoreCorrupt",
    "StoreError",
    "StoreLocked",
    "StoreReadOnly",
    "StoreReplaced",
    "UnknownId",
    "UnknownPolicy",
    "UnrecognizedContent",
    "UpstreamError",
    "WindowTooSmall",
]


class HoldfastError(Exception):
    """Root of all errors of this package."""


class WindowTooSmall(HoldfastError, ValueError):
    """The window cannot hold what must be sent; raised before any call."""


class UnknownPolicy(HoldfastError, LookupError):
    """No preset has this name."""


class FormatError(HoldfastError, ValueError):
    """A file or a body is not what it should be."""


class UnrecognizedContent(FormatError):
    """No reader knows this content."""


class ConfigError(HoldfastError, ValueError):
    """A setting has a wrong name or value."""


class InvalidRequest(HoldfastError, ValueError):
    """The request breaks a rule of its API; nothing was sent."""


class UpstreamError(HoldfastError):
    """A provider refused a request, or did not answer.

    ``kind`` is a word of ``holdfast.types.VERDICT_KINDS``.
    """

    def __init__(self, text: str, kind: str = "unknown", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.retry_after = retry_after
        """Seconds after which the provider wants to be asked again, where it said so."""


class ContextOverflow(UpstreamError):
    """The provider takes no request as large as the smallest that can be made."""


class CompactionFailed(HoldfastError):
    """A compaction that was asked for did not come about; nothing was written. ``outcome`` is a word of the events."""

    def __init__(self, text: str, outcome: str = "provider_error") -> None:
        super().__init__(text)
        self.outcome = outcome


class OperationAborted(HoldfastError):
    """The work was stopped before it ended, or its engine belongs to another event loop or process."""


class LaneCleared(OperationAborted):
    """The work was taken out of its lane before it began."""


class LaneClosed(OperationAborted):
    """No new work is taken any more."""


class DeadlineExceeded(OperationAborted, TimeoutError):
    """The work did not end in its time.

    ``during_compaction`` says whether a compaction, or the retry it was made for, was under way; ``snapshot`` then
    describes what the session goes on with.
    """

    def __init__(self, *said: object, during_compaction: bool = False, snapshot: str = "") -> None:
        super().__init__(*said)
        self.during_compaction = during_compaction
        self.snapshot = snapshot


class StoreError(HoldfastError, OSError):
    """The store cannot be read or written."""


class StoreLocked(StoreError):
    """Somebody else is writing this session."""


class StoreReadOnly(StoreError):
    """The disk refused a write; this store takes no more."""


class QuotaExceeded(StoreError):
    """The write would take the session or the blobs over their limit; nothing was written."""


class StoreCorrupt(StoreError):
    """The database is damaged, or of a newer version than this program."""


class StoreReplaced(StoreCorrupt):
    """The file of the store was taken away, or another one put in its place, since it was opened."""


class UnknownId(StoreError, LookupError):
    """No session, entry or blob has this name, or several begin with it."""


class LogConflict(StoreError, ValueError):
    """The entries would break the log: an unknown parent, an id that other content has, a value of a wrong type.

    Nothing was written.
    """


def raise_if_wrong_type(error: type[Exception], /, **values: tuple[object, Any]) -> None:
    """Do nothing for values of their types; raise ``error``, which names the first other one and what it should be."""
    for name, (value, kind) in values.items():
        if not isinstance(value, kind):
            wanted = " or ".join([one.__name__ for one in get_args(kind) or (kind,) if one is not NoneType])
            raise error(f"{name} is of type {type(value).__name__}; give a value of type {wanted}")
