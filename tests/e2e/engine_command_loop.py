"""One engine on one session that does what it is told, line by line: ``python engine_command_loop.py STORE API``.

``open`` opens engine and session anew; ``say WORDS``, ``ask``, ``compact`` and ``undo`` are the session's verbs;
``hold`` takes its lease and never lets go. Each is answered by a line of JSON, once it is done.
"""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
from engine_worker import FACTOR, WINDOW, tell, wrong

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from agent_workday import make_request_fields
from sample_entries import SAMPLE_KEY

from holdfast.config import get_target
from holdfast.engine.engine import Engine
from holdfast.engine.session import Session
from holdfast.testing.provider import Provider, ProviderSettings
from holdfast.testing.provider.client import STRICTEST_MODELS
from holdfast.testing.upstream import ProviderUpstream


def opened(place: str, api: str, provider: Provider):
    """Return an engine at ``place`` that ``provider`` answers."""
    goal = get_target(api, STRICTEST_MODELS[api], window=WINDOW)
    return Engine.open(place, upstream=ProviderUpstream(provider), target=goal, fields=make_request_fields(api))


async def obey(session: Session, verb: str, words: str) -> dict:
    """Do one thing; return what came of it, and where the session stands then."""
    told = {}
    if verb == "say":
        told["ids"] = await session.append(words)
    elif verb == "ask":
        told["answer"] = (await session.ask()).message.text
    elif verb == "compact":
        told["outcome"] = (await session.compact()).outcome
    elif verb == "undo":
        told["undone"] = await session.undo()
    elif verb == "hold":
        with session.resources.store.hold_lease(SAMPLE_KEY):
            tell("{}")
            await anyio.sleep_forever()
    branch = session.journal.state
    return {**told, "leaf": session.journal.leaf, "law": [id_ for id_, _ in branch.view.active_decisions]}


async def main(place: str, api: str) -> None:
    """Obey until the input ends."""
    provider = Provider(ProviderSettings(window=WINDOW, factor=FACTOR))
    async with AsyncExitStack() as stack:
        for line in sys.stdin:
            verb, _, words = line.strip().partition(" ")
            if verb == "open":
                await stack.aclose()
                engine = await stack.enter_async_context(opened(place, api, provider))
                session = await engine.session(SAMPLE_KEY)
            told = await obey(session, verb, words)
            tell(json.dumps({**told, "wrong": len(wrong(provider))}))


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
