"""Named pipes given as input files."""

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


def test_read_pipe_refuses_a_pipe_without_a_writer(pipe):
    """After the timeout the message says what to do."""
    with pytest.raises(FormatError, match="pipe without a writer; start the program"):
        read_pipe(pipe, 0.05)


def test_lint_reads_a_pipe_whose_writer_is_late(run, pipe):
    """A pipe is read to its end, even if its writer opens it late and writes later still."""

    def write() -> None:
        with pipe.open("wb", buffering=0) as out:
            time.sleep(0.1)
            out.write(json.dumps(BODY).encode())

    writer = Timer(0.1, write)
    writer.start()
    assert run("lint", pipe).exit_code == 0
    writer.join()
