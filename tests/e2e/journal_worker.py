"""Workers that spend a day in a stored session until somebody kills them: ``python journal_worker.py STORE STEPS API``.

Each line on standard input asks for one worker, a process of its own. It tells its id, then every id that a verb of
the journal returned, as soon as it did; the last line is ``over``, when the worker is gone, however it went.
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

GOALS = {
    "openai-chat": get_target("openai-chat", "gpt-5.5", window=40_000),
    "anthropic": get_target("anthropic", "claude-opus-5-5", window=40_000),
}


def messages(steps: int) -> list[Message]:
    """Return all that is said in so many steps."""
    said: list[Message] = []
    for step in make_workday(steps):
        said += [Message.from_text("user", step.user)] if step.user else []
        said += make_step_messages(step)
    return said


def onward(journal: Journal, said: list[Message], api: str) -> Iterator[tuple[PreparedRequest | None, list[str]]]:
    """Yield what each verb returned on the way from where the session stands to the end."""
    while (at := len(journal.state.history.sized_messages)) < len(said):
        if said[at].role != "assistant":
            yield None, journal.append(said[at])
            continue
        prepared = journal.prepare_request(GOALS[api])
        yield prepared, [prepared.request_id]
        yield None, [journal.record_answer(said[at], Usage(prepared.plan.after * 11 // 10, 40))]


def work(place: str, said: list[Message], api: str) -> None:
    """Spend the day, and tell the ids."""
    tell(f"pid {os.getpid()}")
    with SqliteStore(place) as store:
        for _, ids in onward(Journal.open(store, SAMPLE_KEY), said, api):
            for id_ in ids:
                tell(id_)


def tell(line: str) -> None:
    """Write a line at once: what was told is not lost with the process."""
    os.write(1, line.encode() + b"\n")


def main() -> None:
    """Start a worker for each line, one after the other."""
    place, said, api = sys.argv[1], messages(int(sys.argv[2])), sys.argv[3]
    tell("ready")
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(place, said, api)
            os._exit(0)
        os.waitpid(pid, 0)
        tell("over")


if __name__ == "__main__":
    main()
