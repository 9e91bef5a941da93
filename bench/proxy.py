"""The cost of the proxy, compared with a bare relay of the same stack and with LiteLLM's proxy, in one run.

Usage: python bench/proxy.py [--json] [--check] [--seconds N] [--litellm PROGRAM]

Figures are processor time of the proxy's process (every thread) in ms a request; the upstream answers at once with
prepared bytes. Each is the median of several rounds, in which the proxies take turns. A ratio is taken within a round,
because the machine may be slower in the next one, and its median is shown. Requests stream, as those of clients do.

- *grown*: a request of 1 MB and 1,000 messages, one step longer than the one before it in the same session;
- *mended*: the same with a call without a result at its beginning, so that every request has to be changed;
- *new*: a request of an unknown session, so that all of it is stored;
- *relay*: an answer of 1,000 events, sent one by one, to a small request;
- *burst*: the same answer, sent all at once;
- *streams*: 200 such answers at the same time, ten events a second each, in growing sessions, for a minute with
  ``--check``; ms an event. Nothing may fail, and memory may not grow after the second fifth of the time.

*bare* is ``child_processes.py``: uvicorn and httpx2 with nothing between them, with the same event loop and HTTP parser
as the proxy: uvloop and httptools if they are installed (see the first line of the output), else asyncio and h11.
*least* is ``least_relay.py``: the same, which also stores each message. *litellm* routes to the same upstream with
everything switched off that can be; *litellm raw* is its pass-through, which neither parses nor routes. Both always run
on uvloop and use aiohttp, which are compiled.

Goals are printed beside their ratios. Requests that are stored are compared with *least*, answers that are only passed
on with *litellm raw*. ``--check`` compares ratios only, never ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import msgspec
from child_processes import PATHS, Child, asked, bare, canned, holdfast, least, litellm, said, stack, upstream
from transcript import transcript

from holdfast.messages.message import Message
from holdfast.messages.parts import ToolCall
from holdfast.messages.sized_message import SizedMessage
from holdfast.providers.fix.fix_request import fix_request
from holdfast.providers.requests.message_dicts import decode_messages
from holdfast.providers.requests.request_body import build_request_body

MESSAGES, LENGTH = 1_000, 880
"""Messages of a long request, and the characters of each that make it 1 MB."""
SHORT, LONG = 3, 1_000
"""Events of an answer."""
ROUNDS, EACH = 15, 4
"""Rounds, and requests of a round."""
RELAYED = 7
"""Rounds of long answers, with one answer each."""
STREAMS, PAUSE, EVENTS = 200, 100, 30
"""Simultaneous streams, ms between their events, and events of each answer."""
WINDOW = "1000000"
"""Tokens; so large that nothing is reduced."""
FIFTH = 5
FLAT = 1.1
"""Largest allowed ratio of the memory in the last fifth of the time to that in the second."""
SECONDS, MINUTE = 15.0, 60.0
"""Seconds that the streams last by default, and with ``--check``."""
MODELS = {"/v1/messages": "claude-sonnet-4-5", "/v1/chat/completions": "gpt-5.1"}
"""Models with known rules, so that valid requests are forwarded unchanged."""
APIS = {"/v1/messages": "anthropic", "/v1/chat/completions": "openai-chat"}
GOALS = {
    "grown / least": 1.5,
    "grown / litellm": 0.2,
    "new / least": 2.0,
    "relay / litellm raw": 1.0,
    "burst / litellm raw": 1.0,
}
"""Promised ratios, for both APIs. *mended* is rare and has no goal; *new* happens once in a session."""
PEER = "litellm[proxy]>=1.100, in an environment of its own; name its program with --litellm"

Body = dict[str, Any]
Row = Mapping[str, Sequence[float]]
"""The ms a request of each proxy, in each round of one scenario."""
Table = Mapping[str, Mapping[str, Row]]
"""Such rows by API and scenario."""

# -- requests ----------------------------------------------------------------------------------------------------------


def conversation(path: str, seed: int = 0) -> Body:
    """Return the body of a long request that asks for a short answer; it depends on the seed."""
    dicts = transcript(MESSAGES, LENGTH, seed)
    slots = [SizedMessage(message, api="openai-chat") for message in decode_messages("openai-chat", dicts)]
    api, model = APIS[path], MODELS[path]
    whole: Body = msgspec.json.decode(fix_request(build_request_body(api, model, slots), api, model=model).body)
    return grown(whole | {"stream": True, "max_tokens": 4_000}, seed)


def short(path: str, number: int, events: int, pause: int) -> Body:
    """Return the first request of a small session. Its answer has ``events`` events with ``pause`` ms between them."""
    first = {"role": "user", "content": f"Tell me of kelp, {number}. answer-{events}-{pause}"}
    return {"model": MODELS[path], "max_tokens": 4_000, "stream": True, "messages": [first]}


def grown(before: Body, number: int, events: int = SHORT, pause: int = 0) -> Body:
    """Return the request after ``before``, whose answer had ``events`` events."""
    answer = {"role": "assistant", "content": "".join(map(said, range(events)))}
    word = {"role": "user", "content": f"Go on with {number}. answer-{events}-{pause}"}
    return before | {"messages": [*before["messages"], answer, word]}


def wounded(whole: Body, path: str) -> Body:
    """Return ``whole`` with a call without a result after its first answer."""
    call = Message("assistant", (ToolCall("call_lost", "look", "{}"),))
    lost: Body = msgspec.json.decode(
        build_request_body(
            APIS[path], MODELS[path], [SizedMessage(call), SizedMessage(Message.from_text("user", "Go on."))]
        )
    )
    return whole | {"messages": [*whole["messages"][:2], *lost["messages"], *whole["messages"][2:]]}


def requests(name: str, path: str) -> Iterator[bytes]:
    """Yield the requests of a scenario without end; the first ones are for warming up."""
    whole = wounded(conversation(path), path) if name == "mended" else conversation(path)
    for number in count(1):
        if name in ("grown", "mended"):
            whole = grown(whole, number)
            yield msgspec.json.encode(whole)
        elif name == "new":
            yield msgspec.json.encode(conversation(path, number))
        else:
            yield msgspec.json.encode(short(path, number, LONG, int(name == "relay")))


# -- one after the other -----------------------------------------------------------------------------------------------


def spent(child: Child, path: str, bodies: Sequence[bytes], expected: bytes) -> float:
    """Return the ms that ``child`` takes for each of ``bodies``, and check that every answer arrives unchanged."""
    before = child.settled()
    for each in bodies:
        answer = asyncio.run(asked(child.url, path, each))
        if expected and answer != expected:
            raise SystemExit(f"{child.url}{path} does not answer what the upstream says: {answer[:300]!r}")
    return (child.settled() - before) / len(bodies)


def alone(name: str, path: str, peers: Mapping[str, Child]) -> Row:
    """Return the cost of a request of one scenario for each of ``peers``."""
    expected = b"".join(canned(path, LONG if name in ("relay", "burst") else SHORT))
    rounds, each = (RELAYED, 1) if name == "relay" else (ROUNDS, EACH)
    bodies = requests(name, path)
    found: dict[str, list[float]] = {peer: [] for peer in peers}
    for turn in range(rounds + 1):
        batch = [next(bodies) for _ in range(each)]
        for peer, child in peers.items():
            place = f"/raw{path}" if peer == "litellm raw" else path
            ms = spent(child, place, batch, b"" if peer.startswith("litellm") else expected)
            if turn:
                found[peer].append(ms)
    return found


# -- beside each other -------------------------------------------------------------------------------------------------


async def streaming(child: Child, path: str, number: int, until: float) -> list[tuple[float, str]]:
    """Run the streams of one session one after the other until ``until``; return the failures with their times."""
    expected, failed = b"".join(canned(path, EVENTS)), list[tuple[float, str]]()
    request = short(path, number, EVENTS, PAUSE)
    while time.monotonic() < until:
        try:
            answer = await asked(child.url, path, msgspec.json.encode(request))
            if answer != expected:
                failed.append((time.monotonic(), f"other bytes: {answer[-200:]!r}"))
        except (OSError, EOFError) as error:
            failed.append((time.monotonic(), f"{type(error).__name__}: {error}"))
        request = grown(request, number, EVENTS, PAUSE)
    return failed


async def _watched(child: Child, until: float) -> list[float]:
    """Return the memory of ``child`` in MB, twice a second."""
    found = []
    while time.monotonic() < until:
        found.append(child.resident)
        await asyncio.sleep(0.5)
    return found


async def beside(child: Child, path: str, seconds: float) -> dict[str, Any]:
    """Return the figures of ``child`` under many simultaneous streams."""
    began, cpu = time.monotonic(), child.cpu
    watching = asyncio.ensure_future(_watched(child, began + seconds))
    failed = await asyncio.gather(*(streaming(child, path, number, began + seconds) for number in range(STREAMS)))
    took, resident = time.monotonic() - began, await watching
    wrong = sorted(one for each in failed for one in each)
    fifths = [min(int((at - began) / took * FIFTH), FIFTH - 1) for at, _ in wrong]
    held = [max(resident[len(resident) * at // FIFTH : len(resident) * (at + 1) // FIFTH]) for at in range(FIFTH)]
    return {
        "seconds": took,
        "ms an event": (child.cpu - cpu) / (STREAMS * 1e3 / PAUSE * took),
        "failed": len(wrong),
        "failed, by fifths": [fifths.count(at) for at in range(FIFTH)],
        "MB, by fifths": held,
        "growth": held[-1] / held[1],
        "descriptors": child.descriptors,
        "first failure": wrong[0][1] if wrong else "none",
    }


# -- the table ---------------------------------------------------------------------------------------------------------


def medians(row: Row) -> dict[str, float]:
    """Return the median cost of a request for each proxy."""
    return {peer: statistics.median(each) for peer, each in row.items()}


def ratios(row: Row, name: str) -> dict[str, float]:
    """Return the ratios of one scenario."""
    peers = [peer for peer in ("bare", "least", "litellm", "litellm raw") if peer in row]
    return {f"{name} / {peer}": _ratio(row["holdfast"], row[peer]) for peer in peers}


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median([one / other for one, other in zip(ours, theirs, strict=True)])


def show(table: Table, streams: Mapping[str, dict[str, Any]]) -> None:
    """Print the figures and their ratios."""
    print(stack())
    for api, rows in table.items():
        peers = list(next(iter(rows.values()), {}))
        print(f"{api + ', ms':>18}" + "".join(f"{peer:>13}" for peer in peers))
        for name, row in rows.items():
            print(f"{name:>18}" + "".join(f"{ms:>13.2f}" for ms in medians(row).values()), end="   ")
            print("  ".join(_told(*one) for one in ratios(row, name).items()))
    for peer, figures in streams.items():
        print(f"{STREAMS} streams, {peer}: {', '.join(f'{key} {_short(value)}' for key, value in figures.items())}")


def _short(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_short, value))
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _told(name: str, value: float) -> str:
    goal = GOALS.get(name)
    return f"{name} {value:.2f}" + (f" ({goal:.2g} {'ok' if value <= goal else 'OVER'})" if goal else "")


def over(table: Table, streams: Mapping[str, dict[str, Any]]) -> list[str]:
    """Return the measured goals that are not met."""
    told = {
        f"{api}: {name}": (value, GOALS[name])
        for api, rows in table.items()
        for scenario, row in rows.items()
        for name, value in ratios(row, scenario).items()
        if name in GOALS
    }
    missed = [f"{name} is {value:.2f}, more than {goal:.2f}" for name, (value, goal) in told.items() if value > goal]
    ours = streams.get("holdfast")
    if ours is not None and (ours["failed"] or ours["growth"] > FLAT):
        missed.append(f"{STREAMS} streams: {ours['failed']} failed, memory became {ours['growth']:.2f} of itself")
    return missed


def measure(program: str | None, seconds: float, only: Sequence[str]) -> tuple[Table, dict[str, dict[str, Any]]]:
    """Return the figures of single requests by API and scenario, and those of many streams."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        begun = partial(_begun, stack)
        url = begun(upstream()).url
        peers = {
            "bare": begun(bare(url)),
            "least": begun(least(url, folder / "least.db")),
            "holdfast": begun(holdfast(url, folder / "store.db", "--window", WINDOW)),
        }
        if program:
            peers["litellm"] = peers["litellm raw"] = begun(litellm(url, program, folder))
        table = {APIS[path]: {name: alone(name, path, peers) for name in only} for path in PATHS}
        two = [peer for peer in ("bare", "holdfast") if seconds]
        streams = {peer: asyncio.run(beside(peers[peer], PATHS[0], seconds)) for peer in two}
    return table, streams


def _begun(stack: ExitStack, child: Child) -> Child:
    return stack.enter_context(child)


def main() -> int:
    """Print the table; with ``--check``, exit 1 if a goal is not met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seconds", type=float, help=f"how long {STREAMS} streams last; 0 = none")
    parser.add_argument("--litellm", default=shutil.which("litellm"), help="LiteLLM's program")
    parser.add_argument(
        "--only", nargs="*", default=["grown", "mended", "new", "relay", "burst"], help="these scenarios"
    )
    args = parser.parse_args()
    seconds = args.seconds if args.seconds is not None else MINUTE if args.check else SECONDS
    table, streams = measure(args.litellm, seconds, args.only)
    missed = over(table, streams)
    if args.json:
        ms = {api: {name: medians(row) for name, row in rows.items()} for api, rows in table.items()}
        told = {api: [ratios(row, name) for name, row in rows.items()] for api, rows in table.items()}
        print(json.dumps({"stack": stack(), "ms": ms, "ratios": told, "streams": streams, "over": missed}))
    else:
        show(table, streams)
    if not args.litellm:
        print(f"LiteLLM was not measured: it needs {PEER}", file=sys.stderr)
    print("\n".join(missed) or "every goal is met", file=sys.stderr)
    return int(args.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
