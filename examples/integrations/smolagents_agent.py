"""A smolagents agent that reads far more than its window holds, offline, with a scripted model in place of a real one.

Run it with ``python examples/integrations/smolagents_agent.py``; it needs ``pip install 'holdfast[smolagents]'``.
"""

from __future__ import annotations

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, Model, tool

from holdfast.integrations.smolagents import HoldfastModel

STEPS = 60


@tool
def read_log(part: int) -> str:
    """Read one part of the log.

    Args:
        part: Which part, counted from 1.

    """
    return "\n".join(f"part {part}, line {line}: {line * 7919 % 1009} ms" for line in range(150))


class ScriptedModel(Model):
    """A model that reads one part of the log after the other, and then looks for a line of an early one."""

    def __init__(self):
        super().__init__()
        self.step = 0
        self.shown_characters = 0

    def generate(self, messages, **_):
        """Write code that calls a tool, or ends."""
        self.shown_characters = max(self.shown_characters, len(str(messages)))
        self.step += 1
        code = f"print(read_log({self.step}))"
        if self.step == STEPS:
            code = "print(recall(search='\"part 7, line 137\"'))"
        elif self.step > STEPS:
            code = "final_answer('Part 7 is slow.')"
        return ChatMessage(MessageRole.ASSISTANT, f"I look.\n<code>\n{code}\n</code>")


def main():
    """Let the agent work, and print how much it said and how much its model was shown at most."""
    scripted_model = ScriptedModel()
    model = HoldfastModel(scripted_model, window=30_000, store=":memory:")
    tools = [read_log, model.recall_tool]
    agent = CodeAgent(tools=tools, model=model, max_steps=STEPS + 5, verbosity_level=LogLevel.OFF)
    agent.run("Which part of the log is slow? Never restart the server.")
    memory = agent.write_memory_to_messages()
    report = model.get_history().report()
    print(f"The agent has {len(memory)} messages with {len(str(memory)):,} characters.")
    print(f"The model was shown at most {scripted_model.shown_characters:,} of them at once.")
    print(f"Its newest request had about {report.tokens:,} tokens of a window of {report.window:,}.")
    found = agent.memory.steps[STEPS].observations.splitlines()[2]
    print(f"What it was not shown any more, it found with the tool recall: {found[-70:]}")


if __name__ == "__main__":
    main()
