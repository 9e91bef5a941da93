"""Holdfast keeps long agent conversations inside the model's context window: valid, cheap, and with nothing lost.

``plan`` and ``apply`` are pure functions over messages; everything else is built on them. ``Engine`` is the whole
thing. Importing this package loads next to nothing: each name brings what it needs when it is first asked for, a
database and a network only where it is one that wants them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError
    from holdfast.model.branch import Branch
    from holdfast.model.messages import Message
    from holdfast.model.plan import Plan
    from holdfast.model.target import Target, World
    from holdfast.policy.pipeline import Policy, Stage
    from holdfast.policy.planning import apply, plan
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


_MODULES = {
    "Branch": "model.branch",
    "Engine": "runtime.engine",
    "HoldfastError": "errors",
    "Message": "model.messages",
    "Plan": "model.plan",
    "Policy": "policy.pipeline",
    "Report": "runtime.session",
    "Session": "runtime.session",
    "Stage": "policy.pipeline",
    "Target": "model.target",
    "World": "model.target",
    "apply": "policy.planning",
    "open_store": "store",
    "plan": "policy.planning",
}
"""The modules of the public names."""


def __getattr__(name: str) -> object:
    """Load a public name, or a module of the package, when it is first asked for."""
    if name in _MODULES:
        found: object = getattr(import_module(f"holdfast.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
    try:
        return import_module(f"holdfast.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"holdfast.{name}":
            raise
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """Return what is there, whether it was asked for or not."""
    return sorted({*globals(), *__all__})
