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
    │   └── ContextOverflow             even the smallest possible request is too large
    ├── CompactionFailed                no summary came, or it did not make the request smaller; nothing was written
    ├── OperationAborted                the work was stopped before it ended
    │   ├── LaneCleared                 it was taken out of its lane before it began
    │   ├── LaneClosed                  no new work is accepted any more
    │   └── DeadlineExceeded (TimeoutError)   it did not end in time
    └── StoreError (OSError)            the store cannot be read or written
        ├── StoreLocked                 another process or task is writing this session
        ├── StoreReadOnly               the disk refused a write; the store accepts no more
        ├── StoreUnavailable            the database server cannot be reached, or the connection to it was lost
        ├── QuotaExceeded               the store or the session would grow over its limit; nothing was written
        ├── StoreCorrupt                the database is damaged or of a newer version
        │   └── StoreReplaced           its file was removed or replaced since it was opened
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
    "StoreUnavailable",
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

    ``kind`` is one of ``holdfast.types.VERDICT_KINDS``.
    """

    def __init__(self, text: str, kind: str = "unknown", retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.retry_after = retry_after
        """Seconds after which the provider wants to be asked again, or None if it did not say."""


class ContextOverflow(UpstreamError):
    """The provider refuses even the smallest request that can be made of this conversation."""


class CompactionFailed(HoldfastError):
    """A requested compaction failed; nothing was written.

    ``outcome`` is one of ``holdfast.events.COMPACTION_OUTCOMES``.
    """

    def __init__(self, text: str, outcome: str = "provider_error") -> None:
        super().__init__(text)
        self.outcome = outcome


class OperationAborted(HoldfastError):
    """The work was stopped before it ended, or its engine belongs to another event loop or process."""


class LaneCleared(OperationAborted):
    """The work was taken out of its lane before it began."""


class LaneClosed(OperationAborted):
    """No new work is accepted any more."""


class DeadlineExceeded(OperationAborted, TimeoutError):
    """The work did not end in time.

    ``during_compaction`` is true if a compaction, or the retry after it, was under way; ``snapshot`` then describes the
    position of the session, which such a timeout does not change.
    """

    def __init__(self, *message: object, during_compaction: bool = False, snapshot: str = "") -> None:
        super().__init__(*message)
        self.during_compaction = during_compaction
        self.snapshot = snapshot


class StoreError(HoldfastError, OSError):
    """The store cannot be read or written."""


class StoreLocked(StoreError):
    """Another process or task is writing this session."""


class StoreReadOnly(StoreError):
    """The disk refused a write; this store accepts no more."""


class StoreUnavailable(StoreError):
    """The database server cannot be reached, or the connection to it was lost. Trying again may help."""


class QuotaExceeded(StoreError):
    """The write would take the session or the blobs over their limit; nothing was written."""


class StoreCorrupt(StoreError):
    """The database is damaged, or of a newer version than this program."""


class StoreReplaced(StoreCorrupt):
    """The file of the store was removed or replaced since it was opened."""


class UnknownId(StoreError, LookupError):
    """No session, entry or blob has this name, or several begin with it."""


class LogConflict(StoreError, ValueError):
    """The entries would break the log: an unknown parent, an id that other content has, a value of a wrong type.

    Nothing was written.
    """


def raise_if_wrong_type(error: type[Exception], /, **values: tuple[object, Any]) -> None:
    """Raise ``error`` if one of ``values``, each a value and its type, has another type; the first such is named."""
    for name, (value, expected_type) in values.items():
        if isinstance(value, expected_type):
            continue
        members = get_args(expected_type) or (expected_type,)
        wanted = " or ".join([member.__name__ for member in members if member is not NoneType])
        raise error(f"{name} is of type {type(value).__name__}; give a value of type {wanted}")
