"""A LangChain agent that reads far more than its window holds, offline, with a scripted model in place of a real one.

Run it with ``python examples/integrations/langchain_agent.py``; it needs ``pip install 'holdfast[langchain]'``.
"""

from __future__ import annotations

from langchain.agents import create_agent
from langchain.tools import tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from holdfast.integrations.langchain import HoldfastMiddleware

STEPS = 60


@tool
def read_log(part: int) -> str:
    """Read one part of the log."""
    return "\n".join(f"part {part}, line {line}: {line * 7919 % 1009} ms" for line in range(150))


class ScriptedModel(BaseChatModel):
    """A model that reads one part of the log after the other."""

    step: int = 0
    shown_characters: int = 0

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **_):
        """Take any tools."""
        return self

    def _generate(self, messages, stop=None, run_manager=None, **_):
        self.shown_characters = max(self.shown_characters, sum(len(str(message.content)) for message in messages))
        self.step += 1
        if self.step > STEPS:
            answer = AIMessage("Part 7 is slow.")
        else:
            call = {"id": f"call_{self.step}", "name": "read_log", "args": {"part": self.step}}
            answer = AIMessage("I read on.", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def main():
    """Let the agent work, and print how much it said and how much its model was shown at most."""
    model = ScriptedModel()
    middleware = HoldfastMiddleware(window=30_000, store=":memory:")
    agent = create_agent(model, [read_log], middleware=[middleware])
    prompt = HumanMessage("Which part of the log is slow? Never restart the server.")
    state = agent.invoke({"messages": [prompt]}, {"recursion_limit": 1_000})
    said = sum(len(str(message.content)) for message in state["messages"])
    report = middleware.get_history(state["messages"]).report()
    print(f"The agent's state has {len(state['messages'])} messages with {said:,} characters.")
    print(f"The model was shown at most {model.shown_characters:,} of them at once.")
    print(f"Its next request has about {report.tokens:,} tokens of a window of {report.window:,}.")


if __name__ == "__main__":
    main()
