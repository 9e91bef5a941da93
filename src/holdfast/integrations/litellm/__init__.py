"""LiteLLM: keeps the conversations of its calls inside their models' windows.

::

    from holdfast.integrations.litellm import HoldfastClient

    llm = HoldfastClient()  # or HoldfastClient(router)
    response = llm.completion(model="anthropic/claude-opus-5", messages=messages, tools=[*tools, llm.recall_tool])

``HoldfastClient`` has the ``completion`` and ``acompletion`` of LiteLLM, or of a router: each call sends a reduced view
of ``messages``, which stay whole, and is made again with less if its provider refuses it for its length.

Where the calls are not yours, ``litellm.callbacks = [HoldfastCallback()]`` does the same by LiteLLM's own hooks, for
asynchronous calls, routers and the proxy server; ``docs/integrations/litellm.md`` says what those hooks do not allow.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("LiteLLM", distribution="litellm", oldest_version="1.108", extra="litellm"):
    from holdfast.integrations.litellm.callback import HoldfastCallback
    from holdfast.integrations.litellm.client import HoldfastClient

__all__ = ["HoldfastCallback", "HoldfastClient"]
