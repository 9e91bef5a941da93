"""``holdfast compact --stdin``: one transcript in, one compaction out, as JSON."""

from __future__ import annotations

import sys
from typing import NoReturn

import click
import msgspec

from holdfast.cli.files.input_files import STDIN, read_input_file
from holdfast.cli.output.errors import WRONG_USE, describe_error
from holdfast.cli.output.terminal import encode_printable_json
from holdfast.errors import WindowTooSmall
from holdfast.hosts.compact_transcript import PLUGIN_API, add_cache_write_prices, compact_transcript
from holdfast.hosts.transcript import TranscriptError, read_transcript


def compact_standard_input() -> None:
    """Print the compaction of the transcript on standard input.

    Ends the process with 2 for wrong input, with the error as one line of JSON on standard error.
    """
    try:
        transcript = read_transcript(read_input_file(STDIN))
        compacted = compact_transcript(transcript)
    except TranscriptError as error:
        _fail(error.path, error.why, error.advice)
    except WindowTooSmall as error:
        _fail("window", describe_error(error), "give the window of the model in tokens, or leave it out")
    if transcript.model:
        # Only here, because it takes a tenth of a second, for which no compaction should wait.
        from holdfast.config.files import load_catalog

        prices = load_catalog().get_prices(PLUGIN_API, transcript.model)
        compacted = add_cache_write_prices(compacted, prices)
    click.echo(msgspec.json.encode(compacted))


def _fail(path: str, why: str, advice: str) -> NoReturn:
    error = {"path": path, "why": why, "advice": advice}
    click.echo(encode_printable_json({"error": error}), err=True)
    sys.exit(WRONG_USE)
