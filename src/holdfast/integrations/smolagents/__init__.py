"""smolagents: a model that keeps an agent's conversation inside the window of the model that it wraps.

::

    from smolagents import CodeAgent
    from holdfast.integrations.smolagents import HoldfastModel

    model = HoldfastModel(model)
    agent = CodeAgent(tools=[*tools, model.recall_tool], model=model)

Every call of the model sees a reduced view; ``agent.memory`` keeps the whole history. The tool ``recall`` reads back
what the view leaves out, and a call that its provider refuses for its length is made again with less.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("smolagents", distribution="smolagents", oldest_version="1.26", extra="smolagents"):
    from holdfast.integrations.smolagents.model import HoldfastModel

__all__ = ["HoldfastModel"]
