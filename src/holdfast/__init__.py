"""Holdfast keeps long agent conversations inside the model's context window: valid, cheap, and with nothing lost.

``plan`` and ``apply`` are pure functions over messages; everything else is built on them. ``Engine`` is the whole
thing. Importing this package loads next to nothing: each name brings what it needs when it is first asked for, a
database and a network only where it is one that wants them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine
    from holdfast.engine.session import Report, Session
    from holdfast.errors import HoldfastError
    from holdfast.messages.message import Message
    from holdfast.planning.pipeline import Policy, Stage
    from holdfast.planning.plan import apply, plan
    from holdfast.state.branch.branch import ConversationState
    from holdfast.state.plan import Plan
    from holdfast.state.target import PlanInputs, Target
    from holdfast.store import open_store

__version__ = "0.1.0"
__all__ = [
    "ConversationState",
    "Engine",
    "HoldfastError",
    "Message",
    "Plan",
    "PlanInputs",
    "Policy",
    "Report",
    "Session",
    "Stage",
    "Target",
    "apply",
    "open_store",
    "plan",
]


_MODULES = {
    "ConversationState": "state.branch.branch",
    "Engine": "engine.engine",
    "HoldfastError": "errors",
    "Message": "messages.message",
    "Plan": "state.plan",
    "PlanInputs": "state.target",
    "Policy": "planning.pipeline",
    "Report": "engine.session",
    "Session": "engine.session",
    "Stage": "planning.pipeline",
    "Target": "state.target",
    "apply": "planning.plan",
    "open_store": "store",
    "plan": "planning.plan",
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
