"""smolagents: a model that keeps an agent's conversation inside the window of the model that it wraps.

::

    from smolagents import CodeAgent
    from holdfast.integrations.smolagents import HoldfastModel

    model = HoldfastModel(model)
    agent = CodeAgent(tools=[*tools, model.recall_tool], model=model)

Every call of the model sees a reduced view; ``agent.memory`` keeps the whole history. The tool ``recall`` reads back
what the view leaves out, and a call that its provider refuses for its length is made again with less.
"""

from __future__ import annotations

try:
    from smolagents import Tool  # noqa: F401 -- what the modules of this package need
    from smolagents.models import ChatMessage, ChatMessageStreamDelta, MessageRole, Model  # noqa: F401
except ImportError as error:
    _ADVICE = "install smolagents 1.26 or newer: pip install 'holdfast[smolagents]'"
    raise ImportError(f"holdfast.integrations.smolagents cannot be used ({error}); {_ADVICE}") from error

from holdfast.integrations.smolagents.model import HoldfastModel

__all__ = ["HoldfastModel"]
