"""The examples that use the strict provider run to their end, offline."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_agent_loop_example_compacts_and_finishes(capsys):
    """The agent reads logs of many times the window, compacts on the way, is never refused, and finishes."""
    runpy.run_path(str(EXAMPLES / "agent_loop.py"), run_name="__main__")
    *compactions, answer, sizes = capsys.readouterr().out.splitlines()
    assert len(compactions) > 3
    assert all(line.startswith("compacted: ") for line in compactions)
    assert answer == "In night 41 the cache was cold."
    assert sizes.startswith("61 requests, the largest ")


def test_sdk_transcripts_example_works_with_each_sdk(capsys):
    """Each SDK gets its answers, its stream, its call and its own error class for an overflow."""
    runpy.run_path(str(EXAMPLES / "sdk_transcripts.py"), run_name="__main__")
    output = capsys.readouterr().out
    assert output.count("  plain ") == output.count("  stream ") == output.count("  tools ") == 4
    assert "no error, which is wrong" not in output
