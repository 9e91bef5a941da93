"""Workers on one task with an engine until somebody kills them: ``python dying_engine.py STORE API``.

Each line on standard input asks for one worker, a process of its own. It tells its id, then the id of the leaf
whenever a verb of the session has returned, and what happens between (lines that begin with ``~``). The last line is
``over``, when the worker is gone, however it went.
"""

from __future__ import annotations

import os
import sys
from functools import partial

import anyio
from msgspec.structs import replace

from holdfast.config import target
from holdfast.model.messages import Message
from holdfast.model.parts import Text, ToolResult
from holdfast.runtime.engine import Engine
from holdfast.runtime.session import Session
from holdfast.store.base import SessionStore
from holdfast.testing.provider import Provider, Settings
from holdfast.testing.provider.calls import Refusal
from holdfast.testing.provider.calls import Said as Says
from holdfast.testing.provider.client import MODELS
from holdfast.testing.provider.counting import counter
from holdfast.testing.provider.reading import Request
from holdfast.testing.samples import KEY
from holdfast.testing.upstream import ProviderUpstream
from holdfast.testing.workday import fields
from holdfast.wire.overflow import ErrorReport, classify

WINDOW = 16_000
TASK = "Task: go through all parts of the project, one after the other."
LINES = (3, 60, 150, 30, 1_200)
"""Lines of the results, in turn; the last are too long for any window and stored apart."""


def result(step: int) -> str:
    """Return what the tool says at a step."""
    return "\n".join(f"{at:>5}  part_{step}_{at} = compute({at * 31 % 997})" for at in range(LINES[step % len(LINES)]))


class Model:
    """What the model says: one call for each step, by the number of those that were answered."""

    def __init__(self) -> None:
        self.step = 0

    def next(self, _request: Request, _blocks: object) -> Says:
        """Return the next answer."""
        return Says(f"Step {self.step}.", (("read", {"path": f"src/part_{self.step}.py"}),), f"Now part {self.step}.")


async def step(session: Session, model: Model, *, tell) -> None:
    """Go one verb on from where the session stands."""
    branch = session.journal.branch
    model.step = len(branch.slots) // 2  # the question, then an answer and a result for each
    if not len(branch.slots):
        await session.ask(TASK)
    elif branch.open:
        text = result(model.step - 1)
        await session.append(Message("tool", tuple(ToolResult(id_, "read", (Text(text),)) for id_ in branch.open)))
    else:
        await session.ask()
    tell(session.journal.leaf)


async def work(place: str | SessionStore, api: str, steps: int, tell) -> Provider:
    """Work so many verbs on; return the provider that judged it."""
    model = Model()
    provider = Provider(Settings(window=WINDOW, factor=1.3), model)
    goal = replace(target(api, MODELS[api], window=WINDOW), prior=1.0)

    def told(event: object) -> None:
        tell(f"~{type(event).__name__}")

    upstream = ProviderUpstream(provider)
    async with Engine.open(place, upstream=upstream, target=goal, fields=fields(api), listen=told) as engine:
        session = await engine.session(KEY)
        for _ in range(steps):
            await step(session, model, tell=tell)
            tell(*map("~wrong {}".format, wrong(provider)))
    return provider


def wrong(provider: Provider) -> list[Refusal]:
    """Return what the provider refused for another reason than its size."""
    refused = [one.reply for one in provider.requests if isinstance(one.reply, Refusal)]
    return [
        one for one in refused if not classify(ErrorReport("", one.status, one.code, one.message, one.body)).is_overflow
    ]


def tell(*lines: str) -> None:
    """Write lines at once: what was told is not lost with the process."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def main() -> None:
    """Start a worker for each line, one after the other."""
    place, api = sys.argv[1:]
    counter("auto")("what takes long to load is loaded before the first worker")
    tell("ready")
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            tell(f"pid {os.getpid()}")
            anyio.run(partial(work, place, api, 10_000, tell))
            os._exit(0)
        os.waitpid(pid, 0)
        tell("over")


if __name__ == "__main__":
    main()
