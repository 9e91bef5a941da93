"""Workers that spend a day in one session with an engine until somebody kills them: ``python engine_worker.py``.

Each line on standard input, ``STORE API WRITER``, asks for one worker, a process of its own. It tells its id, then the
ids that each verb of the session returned or appended, as soon as it did, and what happens between (lines that begin
with ``~``). The last line is ``over``, when the worker is gone, however it went.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import anyio
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from agent_workday import DAY_STEPS, WorkdayStep, make_request_fields, make_result_message, make_workday
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.compaction.summarizer import SummaryWriter
from holdfast.engine.engine import Engine
from holdfast.engine.log.queued_messages import NOTE_QUEUED
from holdfast.engine.session import Session
from holdfast.messages.parts import ToolCall
from holdfast.planning.summary.prompts import SUMMARY_HEADINGS
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.state.entries import MessageEntry, NoteEntry
from holdfast.store.base import SessionStore
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import RefusalReply
from holdfast.testing.provider.calls import ScriptedAnswer as Says
from holdfast.testing.provider.checks.token_counter import get_token_counter
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.parse_request import ProviderRequest
from holdfast.testing.upstream import ProviderUpstream

WINDOW, FACTOR = 32_000, 1.3
LATENCY = 0.004
"""Seconds until an answer begins."""
MEANWHILE = 3
"""One request in so many is interrupted by the user, while its answer is on its way."""
EVENTS = frozenset({"RequestStarted", "AnswerRecorded", "CompactionStarted", "CompactionEnded", "EditsDecided"})
"""What is told of what happens; the rest says nothing of the disk."""
Tell = Callable[..., object]


@cache
def day() -> list[WorkdayStep]:
    """Return the steps of one day."""
    return make_workday(DAY_STEPS)


def step_at(number: int) -> WorkdayStep:
    """Return a step of any day; what the user says is another thing each day."""
    step = day()[number % DAY_STEPS]
    return replace(step, user=step.user and f"Day {number // DAY_STEPS}. {step.user}")


class Model:
    """What the model says: the step that it has come to."""

    def __init__(self) -> None:
        self.number = 0

    def choose_next_answer(self, _request: ProviderRequest, _blocks: object) -> Says:
        """Return the next answer."""
        return step_at(self.number).answer


class Notes:
    """What a model says that writes summaries: under all headings what the user wants, each time a bit otherwise."""

    def __init__(self) -> None:
        self.number = 0

    def choose_next_answer(self, _request: ProviderRequest, _blocks: object) -> Says:
        """Return the next notes."""
        self.number += 1
        said = f"- Notes {self.number}: each task is to find why a line fails, and to mend it."
        more = "- At any word of the user: mind the tide. What was read so far was looked at and is as it should be."
        return Says("\n".join(f"## {heading}\n{said}\n{more}" for heading in SUMMARY_HEADINGS))


class Work:
    """One worker's way through the day, from where the session stands."""

    def __init__(self, session: Session, model: Model, tell: Tell) -> None:
        leaf = session.journal.leaf
        path = session.resources.store.read_path(SAMPLE_KEY, leaf) if leaf else []
        said = [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]
        self.session, self.model, self.tell = session, model, tell
        self.asked = {one.text for one in said if one.role == "user"}
        self.born, self.words = len(path), 0
        model.number = sum(one.role == "assistant" for one in said)

    async def verb(self) -> None:
        """Go one verb on: results, a task or the next request."""
        number, open_ = self.model.number, self.session.journal.state.history.open_call_ids
        if open_:
            self.tell("~append")
            before = step_at(number - 1)
            names = [name for name, _ in before.answer.calls]
            calls = tuple(ToolCall(id_, name, "{}") for id_, name in zip(open_, names, strict=True))
            self.tell(*await self.session.append(make_result_message(calls, before)))
            return
        user = step_at(number).user
        words = (user,) if user and user not in self.asked else ()
        self.asked.update(words)
        async with anyio.create_task_group() as tasks:
            if number % MEANWHILE == 0:
                tasks.start_soon(self.interrupt)
            await self.ask(*words)
        self.model.number += 1

    async def ask(self, *words: str) -> None:
        """Ask, every other time for the events too."""
        if self.model.number % 2:
            await self.session.ask(*words)
        else:
            async with self.session.run(words) as run:
                async for _ in run:
                    pass
        self.tell(self.session.journal.leaf)

    async def interrupt(self) -> None:
        """Say something as a user does who does not wait; nobody ever says the same again."""
        for _ in range(1 + self.model.number % 2):
            await anyio.sleep(LATENCY / 2)
            self.words += 1
            self.tell("~interrupt")
            self.tell(*await self.session.append(f"Word {self.born}.{os.getpid()}.{self.words}: mind the tide."))


def summarisers(api: str, provider: Provider) -> list[SummaryWriter]:
    """Return who writes the summaries, as the session's own model or as another."""
    goal = get_target(api, STRICTEST_MODELS[api], window=WINDOW)
    return [
        SummaryWriter(ProviderUpstream(provider, latency=LATENCY), goal, {} if api == "gemini" else {"stream": True})
    ]


async def work(place: str | SessionStore, api: str, writer: str, steps: int, tell: Tell) -> Provider:
    """Work so many verbs on; return the provider that judged it."""
    model = Model()
    provider = Provider(ProviderSettings(window=WINDOW, factor=FACTOR), model)
    noting = Provider(ProviderSettings(window=WINDOW, factor=FACTOR), Notes())

    def told(event: object) -> None:
        name = type(event).__name__
        if name in EVENTS:
            by = getattr(event, "author", "")
            tell(f"~{name} {by}".strip() if name.startswith("Compact") else f"~{name}")

    tell("~open")
    async with Engine.open(
        place,
        upstream=ProviderUpstream(provider, latency=LATENCY),
        target=get_target(api, STRICTEST_MODELS[api], window=WINDOW),
        fields=make_request_fields(api),
        writers=summarisers(api, noting) if writer == "model" else (),
        listen=told,
    ) as engine:
        worker = Work(await engine.session(SAMPLE_KEY), model, tell)
        for _ in range(steps):
            await worker.verb()
            tell(*[f"~wrong {one}" for one in wrong(provider) + wrong(noting)])
    return provider


def wrong(provider: Provider) -> list[RefusalReply]:
    """Return what the provider refused for another reason than its size."""
    refused = [one.reply for one in provider.requests if isinstance(one.reply, RefusalReply)]
    return [
        one
        for one in refused
        if not classify_error(ErrorReport("", one.status, one.code, one.message, one.body)).is_overflow
    ]


def is_queued(body: object) -> bool:
    """Return whether an entry holds words that waited for an answer."""
    return isinstance(body, NoteEntry) and body.reason == NOTE_QUEUED


def tell(*lines: str) -> None:
    """Write lines at once: what was told is not lost with the process."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def main() -> None:
    """Start a worker for each line, one after the other."""
    day()
    get_token_counter("auto")("what takes long to load is loaded before the first worker")
    tell("ready")
    for line in sys.stdin:
        place, api, writer = line.split()
        pid = os.fork()
        if pid == 0:
            tell(f"pid {os.getpid()}")
            anyio.run(partial(work, place, api, writer, 10_000, tell))
            os._exit(0)
        os.waitpid(pid, 0)
        tell("over")


if __name__ == "__main__":
    main()
