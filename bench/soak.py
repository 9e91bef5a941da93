"""A long run of the proxy: many parallel sessions, a strict provider with a small window, and constant faults.

Usage: python bench/soak.py [--requests N] [--sessions N] [--faults SHARE] [--json] [--check]

The proxy is a process of its own (``holdfast serve``). Sessions of all four APIs, half of them streaming, take turns.
Each sends its history as a client does: failed requests are sent again with the same bytes, and five times in the run
the history is cleared. The full run has 50,000 requests over 200 sessions; by default a tenth of that is done.

It checks that the newest message is in every request that the provider gets, that the provider refuses none except by
the planned faults, and that no client sees an overflow. At the end every message must be in the store, whose logs must
be undamaged, and memory and open files of the proxy must be the same in the last fifth of the run as in the second.
(The proxy holds the last 256 conversations, so memory grows until there are that many.)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from child_processes import Child, Refused, asked, holdfast

from holdfast.errors import HoldfastError
from holdfast.providers.answers.answer_stream import AnswerStream, parse_answer
from holdfast.providers.answers.parsed_answer import ParsedAnswer
from holdfast.providers.common.sse import SseReader
from holdfast.providers.errors.classify_error import classify_error
from holdfast.providers.errors.report import ErrorReport
from holdfast.store.open_store import open_store
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.calls import IncomingRequest, ProviderReply, RefusalReply, ScriptedAnswer
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.provider.faults.faults import FAULT_KINDS, Fault
from holdfast.testing.provider.server.local_server import serve_provider

WINDOW = 12_000
"""Tokens. A session of 250 requests has several times as many."""
LINES = 6
"""Lines of each message: about 300 characters."""
BESIDE = 16
"""Requests at the same time."""
TRIES = 8
"""Attempts of a client before it gives up."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:",
}
FIELDS = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
SLOW, LASTING = {"stall", "drip"}, {"401", "403", "404", "409"}
UNTRUE = {"400-overflow", "400-foreign", "429-overflow"}
"""Overflows with the numbers of another provider: Holdfast would learn a wrong window from them."""
STRIKING = [kind for kind in FAULT_KINDS if kind not in SLOW | LASTING | UNTRUE]
"""Faults after which a client may send the same request again."""
_TAGS = re.compile(rb"<(?:said|answer) [\d-]+>")
LINES_OF_A_DAY = 25
"""Lines of progress for a whole run if standard error is no terminal."""
FIFTH = 5
"""Parts of the run; at the start of each, every session clears its history."""
FLAT, FILES = 1.15, 12
"""Largest allowed growth of memory as a factor, and of open files as a number, from the second to the last fifth."""
HELD = 256
"""Conversations that the proxy holds at a time. If two fifths of a run have fewer, its memory still grows."""


def words(tag: str) -> str:
    """Return a text that no other message has."""
    return f"<said {tag}> " + f"The tide at {tag} comes in over the rock and the kelp. " * LINES


class Speaking:
    """A script whose answers all differ."""

    def __init__(self) -> None:
        self._number = 0

    def choose_next_answer(self, *_: object) -> ScriptedAnswer:
        """Return the next answer."""
        self._number += 1
        return ScriptedAnswer(f"<answer {self._number}> " + "The holdfast holds what the tide would take. " * LINES)


class Watching(Provider):
    """A strict provider that checks for the newest message in each request and counts its own refusals."""

    def __init__(self) -> None:
        super().__init__(ProviderSettings(window=WINDOW), Speaking())
        self.missing: list[str] = []
        self.refused: Counter[str] = Counter()
        self.newest: set[bytes] = set()
        """Tags of the messages that wait for an answer."""

    def answer(self, asked: IncomingRequest) -> ProviderReply:
        """Return the reply, and keep only the last requests in memory."""
        if not self.newest.intersection(_TAGS.findall(asked.body)):
            self.missing.append(asked.body[-300:].decode("utf-8", "replace"))
        reply = super().answer(asked)
        if isinstance(reply, RefusalReply):
            self.refused[f"{reply.status} {reply.message[:80]}"] += 1
        del self.requests[:-10]
        return reply


class Talk:
    """One session, as a client holds it."""

    def __init__(self, number: int, watched: Watching, told: Counter[str]) -> None:
        self.number, self.watched, self.told = number, watched, told
        self.api = list(STRICTEST_MODELS)[number % 4]
        self.streams = number % 8 < 4
        self.said: list[str] = []
        self._history: list[Any] = []

    async def turn(self, url: str, number: int, *, anew: bool) -> None:
        """Send a new message, after clearing the history if ``anew``, until there is a complete answer."""
        if anew:
            self._history.clear()
        tag = f"{self.number}-{number}"
        self._say(words(tag))
        newest = f"<said {tag}>".encode()
        self.watched.newest.add(newest)
        body = msgspec.json.encode(self._body())
        for _ in range(TRIES):
            heard = await self._heard(url, body)
            if heard is not None and heard.is_complete and heard.message.parts:
                break
        else:
            raise SystemExit(f"session {self.number} gave up: {dict(self.told)}")
        self.watched.newest.discard(newest)
        self._history += [json.loads(one) for one in heard.history_elements]
        self.said += [f"<said {tag}>", *[heard.message.text.partition(" The")[0]]]

    async def _heard(self, url: str, body: bytes) -> ParsedAnswer | None:
        """Send ``body`` and return the answer, or None if there is none."""
        self.told["requests"] += 1
        try:
            heard = self._read(await asked(url, self._path, body))
        except Refused as error:
            verdict = classify_error(ErrorReport(self.api, status=error.status, body=error.body))
            self.told["overflows"] += verdict.kind == "context_window"
            self.told[f"{error.status} {verdict.kind}"] += 1
            return None
        except (OSError, EOFError, UnicodeError, HoldfastError) as error:
            self.told[f"{type(error).__name__} {error}"[:60]] += 1
            return None
        self.told["broken off"] += not heard.is_complete
        return heard

    def _read(self, data: bytes) -> ParsedAnswer:
        data.decode()  # a client that takes broken letters sends them back for ever
        if not self.streams:
            return parse_answer(self.api, data)
        fold, reader = AnswerStream(self.api), SseReader()
        for event in [*reader.feed(data), *reader.close()]:
            fold.add_event(event)
        return fold.build_answer()

    @property
    def _path(self) -> str:
        if self.api != "gemini":
            return PATHS[self.api]
        return PATHS["gemini"] + ("streamGenerateContent?alt=sse" if self.streams else "generateContent")

    def _say(self, text: str) -> None:
        word = {"parts": [{"text": text}]} if self.api == "gemini" else {"content": text}
        self._history.append({"role": "user"} | word)

    def _body(self) -> dict[str, Any]:
        told: dict[str, Any] = {FIELDS[self.api]: self._history}
        if self.api == "gemini":
            return told
        limit = {"max_tokens": 400} if self.api == "anthropic" else {}
        return {"model": STRICTEST_MODELS[self.api], **limit, "stream": self.streams} | told


def faults(requests: int, share: float, seed: int) -> list[Fault]:
    """Return the faults of a run, each for a different request."""
    pick = random.Random(seed)
    struck = sorted(pick.sample(range(1, requests * 2), int(requests * share * 2)))
    return [Fault(pick.choice(STRIKING), at=at, seconds=0.01) for at in struck]


class Day:
    """All sessions of a run, and the measured memory and files of the proxy."""

    def __init__(self, proxy: Child, watched: Watching, sessions: int, requests: int) -> None:
        self.proxy, self.told = proxy, Counter[str]()
        self.talks = [Talk(number, watched, self.told) for number in range(sessions)]
        self.turns = requests // sessions
        self.seen: list[tuple[float, int]] = []
        """MB and open files, in the order of time."""

    async def pass_by(self) -> None:
        """Run all turns of all sessions, some at a time, in random order."""
        pick, queue = random.Random(1), [(talk, turn) for turn in range(self.turns) for talk in self.talks]
        for turn in range(self.turns):
            row = queue[turn * len(self.talks) : (turn + 1) * len(self.talks)]
            pick.shuffle(row)
            waiting = iter(row)
            await asyncio.gather(*(self._work(waiting) for _ in range(BESIDE)))
            self.seen.append((self.proxy.resident, self.proxy.descriptors))
            self._progress(turn + 1)

    def _progress(self, turn: int) -> None:
        """Print the progress: on a terminal one line that is overwritten, otherwise a new line now and then."""
        is_seen = sys.stderr.isatty()
        if is_seen or turn % max(1, self.turns // LINES_OF_A_DAY) == 0:
            megabytes, files = self.seen[-1]
            told = f"{turn} of {self.turns}: {self.told['requests']} requests, {megabytes:.0f} MB, {files} files"
            print(f"\r{told}" if is_seen else told, end="" if is_seen else "\n", file=sys.stderr, flush=True)

    def most(self, fifth: int) -> tuple[float, int]:
        """Return the largest memory in MB and number of open files in one fifth of the run."""
        part = len(self.seen) // FIFTH
        there = self.seen[fifth * part : (fifth + 1) * part] or self.seen
        return max(one[0] for one in there), max(one[1] for one in there)

    async def _work(self, waiting: Any) -> None:
        for talk, turn in waiting:
            await talk.turn(self.proxy.url, turn, anew=turn % max(1, self.turns // FIFTH) == 0)


def lost(talks: list[Talk], place: Path) -> list[str]:
    """Return the tags of messages that are not in the store, and the damage found in its logs."""
    with open_store(place) as store:
        keys = [info.key for info in store.list_sessions()]
        held = [msgspec.json.encode(entry) for key in keys for entry in store.read_entries(key)]
        wrong = [what for key in keys for what in store.find_damage(key)]
    there = {tag.decode() for log in held for tag in _TAGS.findall(log)}
    return [*wrong, *(said for talk in talks for said in talk.said if said not in there)]


def measure(requests: int, sessions: int, share: float) -> dict[str, Any]:
    """Run a day and return its figures."""
    watched = Watching()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(serve_provider(watched, faults(requests, share, 7)))
        proxy = stack.enter_context(holdfast(url, folder / "store.db", "--window", str(WINDOW)))
        day, began, cpu = Day(proxy, watched, sessions, requests), time.monotonic(), proxy.cpu
        asyncio.run(day.pass_by())
        took = time.monotonic() - began
        proxy.settled()
        missing = lost(day.talks, folder / "store.db")
        cpu = proxy.cpu - cpu
    early, late = day.most(1), day.most(FIFTH - 1)
    return {
        "requests": day.told.pop("requests"),
        "seconds": round(took),
        "ms a request": round(cpu / (requests or 1), 2),
        "lost": missing[:5],
        "newest words missing": watched.missing[:2],
        "refused by the provider": dict(watched.refused.most_common(6)),
        "overflows that reached a client": day.told.pop("overflows"),
        "told to clients": dict(day.told.most_common()),
        "MB, by fifths": [round(day.most(fifth)[0]) for fifth in range(FIFTH)],
        "open files, by fifths": [day.most(fifth)[1] for fifth in range(FIFTH)],
        "flat": (late[0] <= FLAT * early[0] or 2 * sessions < HELD) and late[1] <= early[1] + FILES,
    }


def main() -> int:
    """Print the figures; with ``--check``, exit 1 if a check failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=5_000)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--faults", type=float, default=0.05, help="share of requests that a fault strikes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found = measure(args.requests, args.sessions, args.faults)
    if args.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>32}  {value}")
    wrong = found["lost"] or found["newest words missing"] or found["overflows that reached a client"]
    return int(args.check and bool(wrong or found["refused by the provider"] or not found["flat"]))


if __name__ == "__main__":
    sys.exit(main())
