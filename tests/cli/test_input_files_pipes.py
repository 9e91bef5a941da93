"""Pipes that are given as files."""

from __future__ import annotations

import json
import os
import time
from threading import Timer

import pytest

from holdfast.cli.files.input_files import read_pipe
from holdfast.errors import FormatError

BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "x" * 300_000}]}


@pytest.fixture
def pipe(home):
    os.mkfifo(home / "pipe")
    return home / "pipe"


def test_a_pipe_without_a_writer_is_refused(pipe):
    """Nobody is waited for longer than the patience, and the message says what to do."""
    with pytest.raises(FormatError, match="pipe without a writer; start the program"):
        read_pipe(pipe, 0.05)


def test_a_writer_may_come_and_take_its_time(run, pipe):
    """What is written is read to its end, also where its writer opens the pipe late and begins later still."""

    def write() -> None:
        with pipe.open("wb", buffering=0) as out:
            time.sleep(0.1)
            out.write(json.dumps(BODY).encode())

    writer = Timer(0.1, write)
    writer.start()
    assert run("lint", pipe).exit_code == 0
    writer.join()
