"""Holdfast keeps long agent conversations inside the model's context window: valid, cheap, and with nothing lost.

``plan`` and ``apply`` are pure functions over messages; everything else is built on them. ``Engine`` is the whole
thing. Importing this package loads msgspec and the standard library, no database and no network.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.model.branch import Branch
from holdfast.model.messages import Message
from holdfast.model.plan import Plan
from holdfast.model.target import Target, World
from holdfast.policy.pipeline import Policy, Stage
from holdfast.policy.planning import apply, plan

if TYPE_CHECKING:
    from holdfast.runtime.engine import Engine
    from holdfast.runtime.session import Report, Session
    from holdfast.store import open_store

__version__ = "0.1.0"
__all__ = [
    "Branch",
    "Engine",
    "HoldfastError",
    "Message",
    "Plan",
    "Policy",
    "Report",
    "Session",
    "Stage",
    "Target",
    "World",
    "apply",
    "open_store",
    "plan",
]


_LATER = {
    "Engine": "holdfast.runtime.engine",
    "Report": "holdfast.runtime.session",
    "Session": "holdfast.runtime.session",
    "open_store": "holdfast.store",
}
"""Names that need a database or a network, with their modules."""


def __getattr__(name: str) -> object:
    """Load what needs a database or a network only when it is asked for."""
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
