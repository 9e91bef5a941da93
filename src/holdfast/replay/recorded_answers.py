"""Answers of a model in a file: a request that was answered once gets the same answer again, without its provider.

The file has a JSON object on each line. A request is found by a digest of its API, model and body, so that a changed
prompt, session or policy asks again.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.engine.upstream.upstream import Reply, Upstream, UpstreamRequest
from holdfast.errors import FormatError, UpstreamError
from holdfast.state.codec.reading import get_decoder

ANSWERS_FILE_MODE = 0o600
"""Access to a file of answers: they tell what the recorded sessions were about."""


class RecordedAnswer(Struct, frozen=True, omit_defaults=True):
    """One line of a file of answers."""

    request: str
    """Digest of the request (``hash_summary_request``)."""
    body: str
    """The body of the reply, as it came."""
    content_type: str = "application/json"


def hash_summary_request(upstream_request: UpstreamRequest) -> str:
    """Return the digest by which the answer to a request is found again."""
    hasher = blake2b(digest_size=16)
    for piece in (upstream_request.api.encode(), upstream_request.model.encode(), upstream_request.body):
        hasher.update(b"%d:%b" % (len(piece), piece))
    return hasher.hexdigest()


def read_recorded_answers(path: Path) -> dict[str, RecordedAnswer]:
    """Return the answers in a file by the digests of their requests; none if there is no such file.

    Raises ``FormatError`` with the number of a line that holds no answer.
    """
    answers: dict[str, RecordedAnswer] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return answers
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            answer = get_decoder(RecordedAnswer).decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise FormatError(
                f"{path}: line {number} is no recorded answer ({error}); remove the line, or name another file"
            ) from None
        answers[answer.request] = answer
    return answers


class AnswerRecorder:
    """An upstream that gives recorded answers, and asks ``upstream`` for all others, which it adds to ``path``.

    Without ``upstream`` a request that has no recorded answer fails. Refusals are relayed and not recorded.
    """

    def __init__(self, path: Path, upstream: Upstream | None) -> None:
        self._path = path
        self._upstream = upstream
        self._answers = read_recorded_answers(path)

    @asynccontextmanager
    async def send(self, upstream_request: UpstreamRequest) -> AsyncIterator[Reply]:
        """Yield the recorded reply, or that of the upstream.

        Raises ``UpstreamError`` if there is neither, or as the upstream does.
        """
        digest = hash_summary_request(upstream_request)
        answer = self._answers.get(digest)
        if answer is not None:
            yield _make_reply(200, {"content-type": answer.content_type}, answer.body.encode())
            return
        if self._upstream is None:
            # No passing fault: asking again would find nothing either.
            raise UpstreamError(
                f"{self._path} has no answer to this request ({digest[:12]}); give a key to ask the model", "auth"
            )
        async with self._upstream.send(upstream_request) as reply:
            body = await reply.read_body()
            if reply.is_success:
                self._add_answer(RecordedAnswer(digest, body.decode("utf-8", "replace"), _get_content_type(reply)))
            yield Reply(reply.status, reply.headers, _iterate_once(body), reply.raw_headers, reply.secrets)

    def _add_answer(self, answer: RecordedAnswer) -> None:
        self._answers[answer.request] = answer
        line = msgspec.json.encode(answer) + b"\n"
        # Appended at once: an interrupted replay keeps what was paid for.
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, ANSWERS_FILE_MODE)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line)


def _get_content_type(reply: Reply) -> str:
    return reply.headers.get("content-type", RecordedAnswer.__struct_defaults__[0])


def _make_reply(status: int, headers: Mapping[str, str], body: bytes) -> Reply:
    return Reply(status, headers, _iterate_once(body))


async def _iterate_once(body: bytes) -> AsyncIterator[bytes]:
    yield body
