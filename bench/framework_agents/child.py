"""The process of one agent: build it, say what the user says, and report time and memory.

Usage: python bench/framework_agents/child.py < JOB

The first line of the input is the job (``workload.ChildJob``) as JSON. Before each turn the process writes
``{"turn": n}`` and waits for a line, so that the parent's provider knows where its script is. The last line that it
writes has the figures.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent))

from framework_agents.workload import ChildJob, get_result_name, list_processes


class Conversation(Protocol):
    """An agent with its history."""

    def say(self, prompt: str) -> None:
        """Let the agent work on what the user says; raises what its framework raises."""


def make_tools(results: Path) -> dict[str, Callable[[str], str]]:
    """Return the tools of every agent, as plain functions with the docstrings and types that frameworks read."""

    def open_file(argument: str) -> str:
        """Show a file of the repository."""
        return (results / get_result_name("open_file", argument)).read_text()

    def run_command(argument: str) -> str:
        """Run a command and show what it prints."""
        return (results / get_result_name("run_command", argument)).read_text()

    return {"open_file": open_file, "run_command": run_command}


def read_memory(field: str) -> float:
    """Return a figure of this process and its children in MB.

    ``VmRSS`` is what they take now, ``VmHWM`` the most that each of them took.
    """
    total = 0.0
    for process in list_processes(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):  # a child that ended
            status = Path(f"/proc/{process}/status").read_text()
            total += int(status.partition(f"{field}:")[2].split()[0]) * 1_024 / 1e6
    return total


def forget_peak() -> None:
    """Make the kernel measure the peak of the memory anew; that of the imports does not count."""
    for process in list_processes(os.getpid()):
        Path(f"/proc/{process}/clear_refs").write_text("5")


def describe_error(error: BaseException) -> str:
    """Return one short line about why a turn ended."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def run(job: ChildJob, send: Callable[[dict[str, Any]], None], wait: Callable[[], object]) -> None:
    """Do the job. An exception ends a turn and not the conversation: the user says the next thing."""
    module = importlib.import_module(f"framework_agents.{job.framework.replace('-', '_')}_agent")
    conversation: Conversation = module.build_agent(job, make_tools(Path(job.results)))
    forget_peak()
    memory_before = read_memory("VmRSS")
    for number, prompt in enumerate(job.prompts):
        send({"turn": number})
        wait()
        try:
            conversation.say(prompt)
        except Exception as error:
            send({"failed": number, "error": describe_error(error)})
            wait()
    send({"memory": read_memory("VmHWM") - memory_before, "versions": module.list_versions()})
    # A program that the agent runs would write into the folder while the parent deletes it.
    if hasattr(conversation, "close"):
        conversation.close()


def main() -> None:
    """Talk to the parent over the first input and output; what frameworks print goes elsewhere."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = msgspec.json.decode(sys.stdin.readline(), type=ChildJob)

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    run(job, send, sys.stdin.readline)
    # Some frameworks leave threads and loops behind that would keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
