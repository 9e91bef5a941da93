"""Workers that work through a day in one session with an engine until killed: ``python engine_worker.py``.

Each line on standard input, ``STORE API WRITER``, starts one worker process. It writes its process id, then the ids
that each verb of the session returned or appended, as soon as it did, and the events between (lines that begin with
``~``). ``over`` follows when the worker has ended, however it ended.
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
INTERRUPT_EVERY = 3
"""One request in so many gets user messages while its answer is on its way."""
EVENTS = frozenset({"RequestStarted", "AnswerRecorded", "CompactionStarted", "CompactionEnded", "EditsDecided"})
"""The events that are written; the others say nothing about the disk."""
WriteLines = Callable[..., object]


@cache
def build_day() -> list[WorkdayStep]:
    """Return the steps of one day."""
    return make_workday(DAY_STEPS)


def get_step(number: int) -> WorkdayStep:
    """Return a step of any day; the user's text differs from day to day."""
    step = build_day()[number % DAY_STEPS]
    return replace(step, user=step.user and f"Day {number // DAY_STEPS}. {step.user}")


class DayScript:
    """The model's answers: that of the step it has come to."""

    def __init__(self) -> None:
        self.number = 0

    def choose_next_answer(self, _request: ProviderRequest, _blocks: object) -> Says:
        """Return the next answer."""
        return get_step(self.number).answer


class SummaryScript:
    """A summary model's answers: all headings with the user's goal, slightly different each time."""

    def __init__(self) -> None:
        self.number = 0

    def choose_next_answer(self, _request: ProviderRequest, _blocks: object) -> Says:
        """Return the next summary."""
        self.number += 1
        note = f"- Notes {self.number}: each task is to find why a line fails, and to mend it."
        more = "- At any word of the user: mind the tide. What was read so far was looked at and is as it should be."
        return Says("\n".join(f"## {heading}\n{note}\n{more}" for heading in SUMMARY_HEADINGS))


class Worker:
    """One worker's way through the day, from where the session stands."""

    def __init__(self, session: Session, model: DayScript, write_lines: WriteLines) -> None:
        leaf = session.journal.leaf
        path = session.resources.store.read_path(SAMPLE_KEY, leaf) if leaf else []
        messages = [entry.body.sized_message.message for entry in path if isinstance(entry.body, MessageEntry)]
        self.session, self.model, self.write_lines = session, model, write_lines
        self.asked_texts = {message.text for message in messages if message.role == "user"}
        self.entries_at_start, self.words = len(path), 0
        model.number = sum(message.role == "assistant" for message in messages)

    async def do_next_verb(self) -> None:
        """Do the next verb: append results, or ask with a task or without."""
        number, open_ = self.model.number, self.session.journal.state.history.open_call_ids
        if open_:
            self.write_lines("~append")
            previous_step = get_step(number - 1)
            names = [name for name, _ in previous_step.answer.calls]
            calls = tuple(ToolCall(id_, name, "{}") for id_, name in zip(open_, names, strict=True))
            self.write_lines(*await self.session.append(make_result_message(calls, previous_step)))
            return
        user = get_step(number).user
        words = (user,) if user and user not in self.asked_texts else ()
        self.asked_texts.update(words)
        async with anyio.create_task_group() as tasks:
            if number % INTERRUPT_EVERY == 0:
                tasks.start_soon(self.interrupt)
            await self.ask(*words)
        self.model.number += 1

    async def ask(self, *words: str) -> None:
        """Ask, every other time with the events."""
        if self.model.number % 2:
            await self.session.ask(*words)
        else:
            async with self.session.run(words) as run:
                async for _ in run:
                    pass
        self.write_lines(self.session.journal.leaf)

    async def interrupt(self) -> None:
        """Append unique user messages while the answer is on its way."""
        for _ in range(1 + self.model.number % 2):
            await anyio.sleep(LATENCY / 2)
            self.words += 1
            self.write_lines("~interrupt")
            self.write_lines(
                *await self.session.append(f"Word {self.entries_at_start}.{os.getpid()}.{self.words}: mind the tide.")
            )


def make_summary_writers(api: str, provider: Provider) -> list[SummaryWriter]:
    """Return the summary writers."""
    target = get_target(api, STRICTEST_MODELS[api], window=WINDOW)
    return [
        SummaryWriter(ProviderUpstream(provider, latency=LATENCY), target, {} if api == "gemini" else {"stream": True})
    ]


async def work(store_path: str | SessionStore, api: str, writer: str, steps: int, write_lines: WriteLines) -> Provider:
    """Do so many verbs; return the provider that judged the requests."""
    model = DayScript()
    provider = Provider(ProviderSettings(window=WINDOW, factor=FACTOR), model)
    summary_provider = Provider(ProviderSettings(window=WINDOW, factor=FACTOR), SummaryScript())

    def report_event(event: object) -> None:
        name = type(event).__name__
        if name in EVENTS:
            author = getattr(event, "author", "")
            write_lines(f"~{name} {author}".strip() if name.startswith("Compact") else f"~{name}")

    write_lines("~open")
    async with Engine.open(
        store_path,
        upstream=ProviderUpstream(provider, latency=LATENCY),
        target=get_target(api, STRICTEST_MODELS[api], window=WINDOW),
        fields=make_request_fields(api),
        writers=make_summary_writers(api, summary_provider) if writer == "model" else (),
        listen=report_event,
    ) as engine:
        worker = Worker(await engine.session(SAMPLE_KEY), model, write_lines)
        for _ in range(steps):
            await worker.do_next_verb()
            write_lines(
                *[
                    f"~wrong {refusal}"
                    for refusal in list_wrong_refusals(provider) + list_wrong_refusals(summary_provider)
                ]
            )
    return provider


def list_wrong_refusals(provider: Provider) -> list[RefusalReply]:
    """Return the refusals that are not about size."""
    refused = [request.reply for request in provider.requests if isinstance(request.reply, RefusalReply)]
    return [
        refusal
        for refusal in refused
        if not classify_error(ErrorReport("", refusal.status, refusal.code, refusal.message, refusal.body)).is_overflow
    ]


def is_queued(body: object) -> bool:
    """Return whether an entry is a user message that waited for an answer."""
    return isinstance(body, NoteEntry) and body.reason == NOTE_QUEUED


def write_lines(*lines: str) -> None:
    """Write lines at once, unbuffered, so that they are not lost with the process."""
    os.write(1, "".join(f"{line}\n" for line in lines).encode())


def main() -> None:
    """Start a worker for each line, one after the other."""
    build_day()
    get_token_counter("auto")("what takes long to load is loaded before the first worker")
    write_lines("ready")
    for line in sys.stdin:
        store_path, api, writer = line.split()
        pid = os.fork()
        if pid == 0:
            write_lines(f"pid {os.getpid()}")
            anyio.run(partial(work, store_path, api, writer, 10_000, write_lines))
            os._exit(0)
        os.waitpid(pid, 0)
        write_lines("over")


if __name__ == "__main__":
    main()
