"""Pydantic AI: a capability that keeps an agent's conversation inside its model's window.

::

    from pydantic_ai import Agent
    from holdfast.integrations.pydantic_ai import HoldfastCapability

    agent = Agent("anthropic:claude-haiku-4-5", capabilities=[HoldfastCapability()])

Every request shows the model a reduced view; the run's message history stays whole. The capability gives the model the
tool ``recall``, which reads back what the view leaves out, and makes a request again with less if its provider refuses
it for its length.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("Pydantic AI", distribution="pydantic-ai-slim", oldest_version="2.64", extra="pydantic-ai"):
    from holdfast.integrations.pydantic_ai.capability import HoldfastCapability

__all__ = ["HoldfastCapability"]
