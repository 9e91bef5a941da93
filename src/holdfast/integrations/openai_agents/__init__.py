"""OpenAI Agents SDK: a run configuration that keeps the conversations of runs inside their models' windows.

::

    from agents import Agent, Runner
    from holdfast.integrations.openai_agents import HoldfastRuns

    holdfast = HoldfastRuns()
    agent = Agent("Operator", tools=[read_log, holdfast.recall_tool])
    result = await Runner.run(agent, prompt, session=session, run_config=holdfast.run_config(session))

Every call of a model sees a reduced view; the session and the result keep the whole history. A request that its
provider refuses for its length is made again with less, inside of the call.

A run configuration is where the SDK lets others change what a model is sent (``call_model_input_filter``) and how it is
called (``model_provider``), for all agents of a run. Tools belong to agents, so the tool ``recall`` is added there.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework(
    "the OpenAI Agents SDK", distribution="openai-agents", oldest_version="0.21", extra="openai-agents"
):
    from holdfast.integrations.openai_agents.runs import HoldfastRuns

__all__ = ["HoldfastRuns"]
