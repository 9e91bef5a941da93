"""The model that writes the summaries of a replay: reached over HTTP, or read from a file of recorded answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from holdfast.cli.output.errors import CommandError
from holdfast.cli.provider_access import get_api_url, make_auth_headers
from holdfast.config import Catalog, get_target
from holdfast.engine.compaction.summary_writer import SummaryWriter
from holdfast.engine.sync import run_event_loop
from holdfast.engine.upstream.upstream import HttpUpstream, Upstream
from holdfast.providers.registry import API_NAMES, DEFAULT_API
from holdfast.replay.recorded_answers import AnswerRecorder
from holdfast.replay.written_summaries import SUMMARY_KINDS, SummaryKind, SummaryModel


class SummaryModelOptions(Struct, frozen=True):
    """The options of the command line that choose the model."""

    model: str
    base_url: str | None = None
    answers: str | None = None
    """A file of recorded answers, to read from and to add to."""


def parse_summary_kinds(value: str) -> tuple[SummaryKind, ...]:
    """Return the kinds in a list separated by commas, each once; ``all`` is all of them.

    Raises ``CommandError`` for any other word.
    """
    words = [word for word in value.replace(" ", "").split(",") if word]
    if words == ["all"]:
        return SUMMARY_KINDS
    kinds = tuple(kind for kind in SUMMARY_KINDS if kind in words)
    unknown_words = [word for word in words if word not in SUMMARY_KINDS]
    if unknown_words or not kinds:
        raise CommandError(f"--summaries {value!r} is none of {', '.join(SUMMARY_KINDS)}; separate them by commas")
    return kinds


@contextmanager
def open_summary_model(options: SummaryModelOptions, catalog: Catalog) -> Iterator[SummaryModel]:
    """Open the connection to the model, and close it at the end.

    Without a key a file of recorded answers is all there is to read from; without such a file either, ``CommandError``
    is raised.
    """
    api = catalog.find_api(options.model) or DEFAULT_API
    if api not in API_NAMES:
        raise CommandError(f"{options.model} is reached by {api}, which replay does not speak; name another model")
    target = get_target(api, options.model, catalog=catalog)
    http_upstream = _make_http_upstream(api, options)
    with run_event_loop() as loop:
        upstream: Upstream | None = http_upstream
        if options.answers is not None:
            upstream = AnswerRecorder(Path(options.answers), http_upstream)
        assert upstream is not None
        writer = SummaryWriter(upstream, target)
        if http_upstream is None:
            yield SummaryModel(writer, loop.portal.call)
            return
        with loop.portal.wrap_async_context_manager(http_upstream):
            yield SummaryModel(writer, loop.portal.call)


def _make_http_upstream(api: str, options: SummaryModelOptions) -> HttpUpstream | None:
    """Return the connection to the model, or None if there is no key for it but a file of answers."""
    url = get_api_url(api, options.base_url)
    try:
        headers = make_auth_headers(api, url)
    except CommandError:
        if options.answers is not None and Path(options.answers).is_file():
            return None
        raise
    return HttpUpstream(url, api, headers)
