"""A Strands agent that reads far more than its window holds, offline, with a scripted model in place of a real one.

Run it with ``python examples/integrations/strands_agent.py``; it needs ``pip install 'holdfast[strands]'``.
"""

from __future__ import annotations

import json

from strands import Agent, tool
from strands.models import Model

from holdfast.integrations.strands import HoldfastConversationManager

STEPS = 60


@tool
def read_log(part: int) -> str:
    """Read one part of the log."""
    return "\n".join(f"part {part}, line {line}: {line * 7919 % 1009} ms" for line in range(150))


class ScriptedModel(Model):
    """A model that reads one part of the log after the other."""

    def __init__(self):
        self.step = 0
        self.shown_characters = 0

    def update_config(self, **_):
        """Take no settings."""

    def get_config(self):
        """Name no model."""
        return {}

    async def structured_output(self, output_model, prompt, system_prompt=None, **_):
        """Nobody asks for it."""
        raise NotImplementedError
        yield

    async def stream(self, messages, tool_specs=None, system_prompt=None, **_):
        """Call the tool, or end."""
        self.shown_characters = max(self.shown_characters, len(str(messages)))
        self.step += 1
        yield {"messageStart": {"role": "assistant"}}
        if self.step > STEPS:
            yield {"contentBlockDelta": {"delta": {"text": "Part 7 is slow."}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": f"call_{self.step}", "name": "read_log"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps({"part": self.step})}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if self.step > STEPS else "tool_use"}}


def main():
    """Let the agent work, and print how much it said and how much its model was shown at most."""
    model = ScriptedModel()
    manager = HoldfastConversationManager(window=30_000, store=":memory:")
    agent = Agent(model, tools=[read_log], conversation_manager=manager, callback_handler=None)
    agent("Which part of the log is slow? Never restart the server.")
    report = manager.get_history(agent).report()
    print(f"The agent has {len(agent.messages)} messages with {len(str(agent.messages)):,} characters.")
    print(f"The model was shown at most {model.shown_characters:,} of them at once.")
    print(f"Its next request has about {report.tokens:,} tokens of a window of {report.window:,}.")


if __name__ == "__main__":
    main()
