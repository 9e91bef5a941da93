"""A long day of the proxy: many sessions beside each other, a strict provider with a small window, faults all the time.

Usage: python bench/soak.py [--requests N] [--sessions N] [--faults SHARE] [--json] [--check]

The proxy is a process of its own (``holdfast serve``). Sessions of all four APIs, half of them streaming, go on in
turns, each as its client keeps it: what fails is asked again with the same bytes, and five times in the day it is
cleared and begins anew. 50,000 requests over 200 sessions are the full count; a tenth of it is done by default.

Watched are: the newest words are always in what the provider gets, and the provider refuses nothing by itself; no
client is told of an overflow; in the end every word that was said or answered is in the store, whose logs are sound;
memory and open files of the proxy are in the last fifth of the day what they were in the second one. (What a
conversation says is held while it is one of the last 256, so memory grows until there are as many.)
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
"""Tokens; a session of 250 requests has several times as many."""
LINES = 6
"""Lines of each message: about 300 characters."""
BESIDE = 16
"""Requests at a time."""
TRIES = 8
"""Times that a client asks before it gives up."""
PATHS = {
    "anthropic": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"/v1beta/models/{STRICTEST_MODELS['gemini']}:",
}
FIELDS = {"anthropic": "messages", "openai-chat": "messages", "openai-responses": "input", "gemini": "contents"}
SLOW, LASTING = {"stall", "drip"}, {"401", "403", "404", "409"}
UNTRUE = {"400-overflow", "400-foreign", "429-overflow"}
"""Overflows with the numbers of another provider, from which a wrong window is learned."""
STRIKING = [kind for kind in FAULT_KINDS if kind not in SLOW | LASTING | UNTRUE]
"""Faults that a client gets over by asking again."""
_TAGS = re.compile(rb"<(?:said|answer) [\d-]+>")
LINES_OF_A_DAY = 25
"""Lines by which a long day says how far it is, where nobody looks on."""
FIFTH = 5
"""Times that a session begins anew."""
FLAT, FILES = 1.15, 12
"""What memory may become of itself, and how many files more may be open."""
HELD = 256
"""Conversations that the proxy holds at a time; where there were fewer in two fifths of the day, memory still grows."""


def words(tag: str) -> str:
    """Return words that nobody else says."""
    return f"<said {tag}> " + f"The tide at {tag} comes in over the rock and the kelp. " * LINES


class Speaking:
    """Says something else each time."""

    def __init__(self) -> None:
        self._number = 0

    def choose_next_answer(self, *_: object) -> ScriptedAnswer:
        """Return the next answer."""
        self._number += 1
        return ScriptedAnswer(f"<answer {self._number}> " + "The holdfast holds what the tide would take. " * LINES)


class Watching(Provider):
    """A strict provider that sees to it that the newest words are there, and what it refuses by itself."""

    def __init__(self) -> None:
        super().__init__(ProviderSettings(window=WINDOW), Speaking())
        self.missing: list[str] = []
        self.refused: Counter[str] = Counter()
        self.newest: set[bytes] = set()
        """Tags of the words that wait for an answer."""

    def answer(self, asked: IncomingRequest) -> ProviderReply:
        """Return the reply; only the last requests are held."""
        if not self.newest.intersection(_TAGS.findall(asked.body)):
            self.missing.append(asked.body[-300:].decode("utf-8", "replace"))
        reply = super().answer(asked)
        if isinstance(reply, RefusalReply):
            self.refused[f"{reply.status} {reply.message[:80]}"] += 1
        del self.requests[:-10]
        return reply


class Talk:
    """One session as its client has it."""

    def __init__(self, number: int, watched: Watching, told: Counter[str]) -> None:
        self.number, self.watched, self.told = number, watched, told
        self.api = list(STRICTEST_MODELS)[number % 4]
        self.streams = number % 8 < 4
        self.said: list[str] = []
        self._history: list[Any] = []

    async def turn(self, url: str, number: int, *, anew: bool) -> None:
        """Say something, perhaps as the first words, and hear the answer."""
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
        """Return the answer to ``body``; nothing where there is none."""
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
    """Return the faults of a day, each of another request."""
    pick = random.Random(seed)
    struck = sorted(pick.sample(range(1, requests * 2), int(requests * share * 2)))
    return [Fault(pick.choice(STRIKING), at=at, seconds=0.01) for at in struck]


class Day:
    """All sessions of a day, and what the proxy is seen to take."""

    def __init__(self, proxy: Child, watched: Watching, sessions: int, requests: int) -> None:
        self.proxy, self.told = proxy, Counter[str]()
        self.talks = [Talk(number, watched, self.told) for number in range(sessions)]
        self.turns = requests // sessions
        self.seen: list[tuple[float, int]] = []
        """MB and open files, as the day goes on."""

    async def pass_by(self) -> None:
        """Have every session go on, some at a time, in an order of its own."""
        pick, queue = random.Random(1), [(talk, turn) for turn in range(self.turns) for talk in self.talks]
        for turn in range(self.turns):
            row = queue[turn * len(self.talks) : (turn + 1) * len(self.talks)]
            pick.shuffle(row)
            waiting = iter(row)
            await asyncio.gather(*(self._work(waiting) for _ in range(BESIDE)))
            self.seen.append((self.proxy.resident, self.proxy.descriptors))
            self._progress(turn + 1)

    def _progress(self, turn: int) -> None:
        """Say how far the day is: on a terminal always anew, elsewhere a line now and then."""
        is_seen = sys.stderr.isatty()
        if is_seen or turn % max(1, self.turns // LINES_OF_A_DAY) == 0:
            megabytes, files = self.seen[-1]
            told = f"{turn} of {self.turns}: {self.told['requests']} requests, {megabytes:.0f} MB, {files} files"
            print(f"\r{told}" if is_seen else told, end="" if is_seen else "\n", file=sys.stderr, flush=True)

    def most(self, fifth: int) -> tuple[float, int]:
        """Return the most MB and open files that were seen in a fifth of the day."""
        part = len(self.seen) // FIFTH
        there = self.seen[fifth * part : (fifth + 1) * part] or self.seen
        return max(one[0] for one in there), max(one[1] for one in there)

    async def _work(self, waiting: Any) -> None:
        for talk, turn in waiting:
            await talk.turn(self.proxy.url, turn, anew=turn % max(1, self.turns // FIFTH) == 0)


def lost(talks: list[Talk], place: Path) -> list[str]:
    """Return what was said and is not in the store, and what is wrong with its logs."""
    with open_store(place) as store:
        keys = [info.key for info in store.list_sessions()]
        held = [msgspec.json.encode(entry) for key in keys for entry in store.read_entries(key)]
        wrong = [what for key in keys for what in store.find_damage(key)]
    there = {tag.decode() for log in held for tag in _TAGS.findall(log)}
    return [*wrong, *(said for talk in talks for said in talk.said if said not in there)]


def measure(requests: int, sessions: int, share: float) -> dict[str, Any]:
    """Return what a day was like."""
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
    """Print what was seen; with ``--check``, exit 1 where something is not as it must be."""
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
