"""LangChain and LangGraph: a middleware that keeps an agent's conversation inside its model's window.

::

    from langchain.agents import create_agent
    from holdfast.integrations.langchain import HoldfastMiddleware

    agent = create_agent("anthropic:claude-sonnet-5-5", tools, middleware=[HoldfastMiddleware()])

Every call of the model sees a reduced view; the agent's state keeps the whole history. The middleware gives the model
the tool ``recall``, which reads back what the view leaves out, and calls the model again with less if its provider
refuses a request for its length. For ``create_deep_agent`` of deepagents there is ``HoldfastDeepMiddleware``.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("LangChain", distribution="langchain", oldest_version="1.3", extra="langchain"):
    from holdfast.integrations.langchain.middleware import HoldfastDeepMiddleware, HoldfastMiddleware

__all__ = ["HoldfastDeepMiddleware", "HoldfastMiddleware"]
