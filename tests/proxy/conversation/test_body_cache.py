"""Long work on bodies is done in a thread, so that other requests do not wait for it."""

from __future__ import annotations

import json
import time

import anyio
import pytest
from anyio.lowlevel import checkpoint

from holdfast.proxy.conversation.body_cache import THREAD_BYTES, BodyCache
from holdfast.testing.provider.client import STRICTEST_MODELS

WORDS = "kelp on the rock, and the tide comes in. " * 20
MIN_OTHER_REQUESTS = 60
"""[M] Two or three times as many as are answered while a request is processed without a thread."""


def make_conversation(count, text):
    """Return a Responses request with ``count`` messages."""
    items = [{"role": ("user", "assistant")[at % 2], "content": f"{at}: {text}"} for at in range(count)]
    return {"model": STRICTEST_MODELS["openai-responses"], "input": items}


def make_surrogate_request(count):
    """Return a request with ``count`` lone surrogates, which must be replaced before it can be parsed."""
    text = json.dumps(make_conversation(1, "")).replace('0: "', "0: " + r"\ud83d" * count + '"')
    return text.encode()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/v1/responses/compact", json.dumps(make_conversation(400, WORDS)).encode()),
        ("/v1/responses/input_tokens", json.dumps(make_conversation(40_000, "")).encode()),
        ("/v1/responses/input_tokens", make_surrogate_request(200_000)),
    ],
    ids=["planning a compaction", "parsing a new body", "replacing surrogates"],
)
def test_long_parsing_and_planning_do_not_block_other_requests(path, data, open_client, make_strict_upstream):
    """Requests that arrive after a long one are answered before that one is sent."""
    upstream, answered, others = make_strict_upstream(16_000), [], []

    async def scenario():
        async with open_client(upstream, window=16_000) as client:

            async def ask():
                while (
                    len(others) <= MIN_OTHER_REQUESTS and not upstream.sent and not answered
                ):  # more would starve the thread
                    await client.web.get("/livez")
                    others.append("answered")
                    await checkpoint()  # the transport never waits

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                answered.append(await client.post(path, data))

    anyio.run(scenario)
    assert len(others) > MIN_OTHER_REQUESTS


def test_run_off_loop_runs_one_job_at_a_time():
    """Threads that compute in parallel would block the loop for longer than their work takes."""
    bodies, running, seen = BodyCache(), [], []

    def work(body):
        running.append(body)
        time.sleep(0.01)
        seen.append(len(running))
        running.remove(body)

    async def scenario():
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(bodies.run_off_loop, bytes([number]) * THREAD_BYTES, work)

    anyio.run(scenario)
    assert seen == [1] * 8
