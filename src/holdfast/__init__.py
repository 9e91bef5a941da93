"""Holdfast keeps long agent conversations inside the model's context window: valid, cheap, and with nothing lost.

``plan`` and ``apply`` are pure functions over messages; everything else is built on them. ``Engine`` adds a store, a
provider and recovery. Importing this package loads almost nothing: each name loads its module when it is first used,
and only some of these load a database driver or an HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.config.files import get_target
    from holdfast.engine.engine import Engine
    from holdfast.engine.session import Report, Session
    from holdfast.engine.upstream.upstream import HttpUpstream
    from holdfast.errors import HoldfastError
    from holdfast.messages.message import Message
    from holdfast.messages.parts import Media, Opaque, Text, Thinking, ToolCall, ToolResult
    from holdfast.planning.pipeline import Policy
    from holdfast.planning.plan import apply, plan
    from holdfast.planning.stages.order import Stage
    from holdfast.providers.errors.classify_error import classify_error
    from holdfast.providers.fix.fix_request import fix_request as fix
    from holdfast.providers.requests.message_dicts import decode_messages, encode_messages
    from holdfast.providers.rules.validate import validate_request as lint
    from holdfast.state.conversation_state import ConversationState
    from holdfast.state.entries import Usage
    from holdfast.state.plan import Plan, SummaryRequest
    from holdfast.state.target import PlanInputs, SummaryResult, Target
    from holdfast.store.open_store import open_store

__version__ = "0.1.0"
__all__ = [
    "ConversationState",
    "Engine",
    "HoldfastError",
    "HttpUpstream",
    "Media",
    "Message",
    "Opaque",
    "Plan",
    "PlanInputs",
    "Policy",
    "Report",
    "Session",
    "Stage",
    "SummaryRequest",
    "SummaryResult",
    "Target",
    "Text",
    "Thinking",
    "ToolCall",
    "ToolResult",
    "Usage",
    "apply",
    "classify_error",
    "decode_messages",
    "encode_messages",
    "fix",
    "get_target",
    "lint",
    "open_store",
    "plan",
]

PUBLIC_MODULES = ("agent", "errors", "events", "hooks", "sync", "testing", "types")
"""Modules for what not every program needs."""
_HOMES = {
    "ConversationState": "state.conversation_state:ConversationState",
    "Engine": "engine.engine:Engine",
    "HoldfastError": "errors:HoldfastError",
    "HttpUpstream": "engine.upstream.upstream:HttpUpstream",
    "Media": "messages.parts:Media",
    "Message": "messages.message:Message",
    "Opaque": "messages.parts:Opaque",
    "Plan": "state.plan:Plan",
    "PlanInputs": "state.target:PlanInputs",
    "Policy": "planning.pipeline:Policy",
    "Report": "engine.session:Report",
    "Session": "engine.session:Session",
    "Stage": "planning.stages.order:Stage",
    "SummaryRequest": "state.plan:SummaryRequest",
    "SummaryResult": "state.target:SummaryResult",
    "Target": "state.target:Target",
    "Text": "messages.parts:Text",
    "Thinking": "messages.parts:Thinking",
    "ToolCall": "messages.parts:ToolCall",
    "ToolResult": "messages.parts:ToolResult",
    "Usage": "state.entries:Usage",
    "apply": "planning.plan:apply",
    "classify_error": "providers.errors.classify_error:classify_error",
    "decode_messages": "providers.requests.message_dicts:decode_messages",
    "encode_messages": "providers.requests.message_dicts:encode_messages",
    "fix": "providers.fix.fix_request:fix_request",
    "get_target": "config.files:get_target",
    "lint": "providers.rules.validate:validate_request",
    "open_store": "store.open_store:open_store",
    "plan": "planning.plan:plan",
}
"""Where each public name is defined: the module, and its name there."""


def __getattr__(name: str) -> object:
    """Load a public name, or a module of the package, when it is first asked for."""
    if name in _HOMES:
        module, _, own_name = _HOMES[name].partition(":")
        value: object = getattr(import_module(f"holdfast.{module}"), own_name)
        globals()[name] = value
        return value
    if not name.isidentifier():  # getattr(holdfast, "a.b") has no such attribute, and imports nothing
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    try:
        return import_module(f"holdfast.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"holdfast.{name}":
            raise
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}") from None


def __dir__() -> list[str]:
    """Return the public names and modules, also those that are not loaded yet."""
    return sorted({*__all__, *PUBLIC_MODULES, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"})
