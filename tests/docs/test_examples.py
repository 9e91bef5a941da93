"""The examples that talk to the strict provider run, offline, to their end."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_an_agent_of_your_own(capsys):
    """It reads logs of many times the window, compacts on the way, is never refused, and finishes."""
    runpy.run_path(str(EXAMPLES / "agent_loop.py"), run_name="__main__")
    *compactions, answer, sizes = capsys.readouterr().out.splitlines()
    assert len(compactions) > 3
    assert all(line.startswith("compacted: ") for line in compactions)
    assert answer == "In night 41 the cache was cold."
    assert sizes.startswith("61 requests, the largest ")


def test_the_official_sdks(capsys):
    """Each SDK gets its answers, its stream, its call and its own error class for an overflow."""
    runpy.run_path(str(EXAMPLES / "sdk_transcripts.py"), run_name="__main__")
    told = capsys.readouterr().out
    assert told.count("  plain ") == told.count("  stream ") == told.count("  tools ") == 4
    assert "no error, which is wrong" not in told
