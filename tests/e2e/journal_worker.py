"""Workers that write a day into a stored session until they are killed: ``python journal_worker.py STORE STEPS API``.

Each line on standard input starts one worker process. It writes its process id, then every id that a verb of the
journal returned, as soon as it returned; ``over`` follows when the worker has ended, however it ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from agent_workday import make_step_messages, make_workday
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.log.journal import Journal, PreparedRequest
from holdfast.messages.message import Message
from holdfast.state.entries import Usage
from holdfast.store.sqlite import SqliteStore

TARGETS = {
    "openai-chat": get_target("openai-chat", "gpt-5.5", window=40_000),
    "anthropic": get_target("anthropic", "claude-opus-5-5", window=40_000),
}


def list_day_messages(steps: int) -> list[Message]:
    """Return all messages of so many steps."""
    messages_of_day: list[Message] = []
    for step in make_workday(steps):
        messages_of_day += [Message.from_text("user", step.user)] if step.user else []
        messages_of_day += make_step_messages(step)
    return messages_of_day


def continue_session(
    journal: Journal, messages_of_day: list[Message], api: str
) -> Iterator[tuple[PreparedRequest | None, list[str]]]:
    """Yield what each verb returns, from where the session stands to the end of the day."""
    while (at := len(journal.state.history.sized_messages)) < len(messages_of_day):
        if messages_of_day[at].role != "assistant":
            yield None, journal.append(messages_of_day[at])
            continue
        prepared = journal.prepare_request(TARGETS[api])
        yield prepared, [prepared.request_id]
        yield None, [journal.record_answer(messages_of_day[at], Usage(prepared.plan.after * 11 // 10, 40))]


def work(store_path: str, messages_of_day: list[Message], api: str) -> None:
    """Work through the day and write the acknowledged ids."""
    write_line(f"pid {os.getpid()}")
    with SqliteStore(store_path) as store:
        for _, ids in continue_session(Journal.open(store, SAMPLE_KEY), messages_of_day, api):
            for id_ in ids:
                write_line(id_)


def write_line(line: str) -> None:
    """Write a line at once, unbuffered, so that it is not lost with the process."""
    os.write(1, line.encode() + b"\n")


def main() -> None:
    """Start a worker for each line, one after the other."""
    store_path, messages_of_day, api = sys.argv[1], list_day_messages(int(sys.argv[2])), sys.argv[3]
    write_line("ready")
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(store_path, messages_of_day, api)
            os._exit(0)
        os.waitpid(pid, 0)
        write_line("over")


if __name__ == "__main__":
    main()
