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

from __future__ import annotations

try:
    import litellm
    from litellm.exceptions import ContextWindowExceededError  # noqa: F401 -- asks whether it is there
    from litellm.integrations.custom_logger import CustomLogger
    from litellm.types.integrations.custom_logger import AgenticLoopPlan  # noqa: F401 -- the same
except ImportError as error:
    advice = "install LiteLLM 1.108 or newer: pip install 'holdfast[litellm]'"
    raise ImportError(f"holdfast.integrations.litellm cannot be used ({error}); {advice}") from error
if not hasattr(CustomLogger, "async_post_call_failure_deployment_hook"):
    installed = getattr(litellm, "__file__", "")
    too_old = f"holdfast.integrations.litellm cannot be used (the LiteLLM in {installed} is too old)"
    raise ImportError(f"{too_old}; install LiteLLM 1.108 or newer: pip install 'holdfast[litellm]'")

from holdfast.integrations.litellm.callback import HoldfastCallback
from holdfast.integrations.litellm.client import HoldfastClient

__all__ = ["HoldfastCallback", "HoldfastClient"]
