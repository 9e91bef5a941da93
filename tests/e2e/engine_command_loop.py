"""One engine on one session that runs commands, a line each: ``python engine_command_loop.py STORE API``.

``open`` opens engine and session again; ``say WORDS``, ``ask``, ``compact`` and ``undo`` are the session's verbs;
``hold`` takes its lease and never releases it. Each is answered by a line of JSON, once it is done.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from engine_worker import FACTOR, WINDOW, list_wrong_refusals, write_lines

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from agent_workday import make_request_fields
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.session import Session
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream


def open_engine(store_path: str, api: str, provider: Provider):
    """Return an engine on the store that ``provider`` answers."""
    target = get_target(api, STRICTEST_MODELS[api], window=WINDOW)
    return Engine.open(store_path, upstream=ProviderUpstream(provider), target=target, fields=make_request_fields(api))


async def run_command(session: Session, verb: str, words: str) -> dict:
    """Run one command; return its result, the leaf and the active decisions."""
    report = {}
    if verb == "say":
        report["ids"] = await session.append(words)
    elif verb == "ask":
        report["answer"] = (await session.ask()).message.text
    elif verb == "compact":
        report["outcome"] = (await session.compact()).outcome
    elif verb == "undo":
        report["undone"] = await session.undo()
    elif verb == "hold":
        with session.resources.store.hold_lease(SAMPLE_KEY):
            write_lines("{}")
            await anyio.sleep_forever()
    state = session.journal.state
    return {**report, "leaf": session.journal.leaf, "active_decisions": [id_ for id_, _ in state.view.active_decisions]}


async def main(store_path: str, api: str) -> None:
    """Run the commands on standard input until it ends."""
    provider = Provider(ProviderSettings(window=WINDOW, factor=FACTOR))
    async with AsyncExitStack() as stack:
        for line in sys.stdin:
            verb, _, words = line.strip().partition(" ")
            if verb == "open":
                await stack.aclose()
                engine = await stack.enter_async_context(open_engine(store_path, api, provider))
                session = await engine.session(SAMPLE_KEY)
            report = await run_command(session, verb, words)
            write_lines(json.dumps({**report, "wrong_refusals": len(list_wrong_refusals(provider))}))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
