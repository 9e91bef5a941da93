"""Strands Agents: a conversation manager that keeps an agent's conversation inside its model's window.

::

    from strands import Agent
    from holdfast.integrations.strands import HoldfastConversationManager

    agent = Agent(model, tools=tools, conversation_manager=HoldfastConversationManager())

Every call of the model sees a reduced view; ``agent.messages`` keeps the whole history. The manager gives the model the
tool ``recall``, which reads back what the view leaves out, and calls the model again with less if its provider refuses
a request for its length.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("Strands Agents", distribution="strands-agents", oldest_version="1.62", extra="strands"):
    from holdfast.integrations.strands.conversation_manager import HoldfastConversationManager

__all__ = ["HoldfastConversationManager"]
