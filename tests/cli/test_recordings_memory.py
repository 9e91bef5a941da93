"""Importing a file: the memory it takes, changes during the read, and the progress it reports."""

from __future__ import annotations

import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from click.testing import CliRunner

from holdfast.cli.commands.import_ import import_command
from holdfast.cli.files import recordings
from holdfast.cli.files.recordings import iter_recordings
from holdfast.errors import FormatError
from holdfast.formats import read_recording
from holdfast.state.entries import Entry

HIGHEST_GROWTH = 2.0
"""Bytes of memory for each further byte of a file of short lines: the index of its lines, without their text.

When whole files were kept in memory it was over seven.
"""
WORDS = "the 🙂 quick brown fox jumps over the lazy dog and writes a long line of output " * 25
TIME = "2026-01-01T00:00:00.000Z"


def make_claude_line(number: int) -> dict[str, object]:
    role = "assistant" if number % 2 else "user"
    link = {"uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None}
    message = {"role": role, "content": [{"type": "text", "text": f"{number} {WORDS}"}]}
    return {"type": role, "sessionId": "s1", "timestamp": TIME, "message": message} | link


def make_codex_line(number: int) -> dict[str, object]:
    if not number:
        return {"timestamp": TIME, "type": "session_meta", "payload": {"id": "s1", "cwd": "/x"}}
    role, kind = ("assistant", "output_text") if number % 2 else ("user", "input_text")
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": f"{number} {WORDS}"}]}
    return {"timestamp": TIME, "type": "response_item", "payload": item}


def make_pi_line(number: int) -> dict[str, object]:
    if not number:
        return {"type": "session", "version": 3, "id": "s1", "timestamp": TIME, "cwd": "/x"}
    message = {"role": "user", "content": [{"type": "text", "text": f"{number} {WORDS}"}]}
    parent = f"e{number - 1}" if number > 1 else None
    return {"type": "message", "id": f"e{number}", "parentId": parent, "timestamp": TIME, "message": message}


LINES = pytest.mark.parametrize("make_line", [make_claude_line, make_codex_line, make_pi_line])
Line = Callable[[int], dict[str, object]]


def write_session(path: Path, make_line: Line, count: int) -> Path:
    lines = [json.dumps(make_line(number), ensure_ascii=False) for number in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def convert_to_array(data: bytes) -> bytes:
    return b"[\n" + b",\n".join(data.splitlines()) + b"\n]\n"


def measure_import_peak(file: Path, store: str) -> int:
    tracemalloc.start()
    try:
        result = CliRunner().invoke(import_command, [str(file), "--store", store])
        assert result.exit_code == 0, result.output
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
@LINES
def test_import_memory_does_not_grow_with_the_texts(tmp_path: Path, make_line: Line) -> None:
    """Neither the first import of a file nor a second one keeps its texts in memory."""
    # a first import loads the modules
    measure_import_peak(write_session(tmp_path / "warm.jsonl", make_line, 4), f"{tmp_path}/warm.db")
    small = write_session(tmp_path / "small.jsonl", make_line, 1_000)
    large = write_session(tmp_path / "large.jsonl", make_line, 2_000)
    more = large.stat().st_size - small.stat().st_size
    for _ in ("first", "again"):
        growth = measure_import_peak(large, f"{tmp_path}/large.db") - measure_import_peak(small, f"{tmp_path}/small.db")
        assert growth < HIGHEST_GROWTH * more


@LINES
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data, id="as it is"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="with a BOM"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), id="with line ends of Windows"),
        pytest.param(lambda data: data.replace(b"\n", b"\n\n \n", 1), id="with blank lines"),
        pytest.param(convert_to_array, id="as an array"),
        pytest.param(lambda data: b" \n" * 600 + convert_to_array(data), id="as an array behind many blanks"),
        pytest.param(lambda data: data[:-100], id="cut off"),
        pytest.param(lambda data: data.removesuffix(b"\n"), id="without a last line end"),
        pytest.param(lambda data: data.replace("🙂".encode(), b"\xff", 1), id="with bytes that are no UTF-8"),
        pytest.param(lambda data: data + b"{no json\n", id="with a damaged line"),
        pytest.param(lambda data: data.replace(b'"s1"', b'""'), id="without an id"),
    ],
)
def test_iter_recordings_by_line_equals_reading_the_whole_file(
    tmp_path: Path, make_line: Line, change: Callable[[bytes], bytes]
) -> None:
    """Reading line by line finds the same entries, problems and leaf as reading all bytes."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    path.write_bytes(change(path.read_bytes()))
    at_once = read_recording(path.read_bytes())
    for source in iter_recordings(str(path), progress=ignore_progress):
        by_line = source.read()
        assert by_line.session
        assert tuple(by_line.entries) == at_once.entries
        assert (by_line.leaf, by_line.problems) == (at_once.leaf, at_once.problems)
        assert (by_line.format, by_line.skipped_counts) == (at_once.format, at_once.skipped_counts)


def ignore_progress(_done: int, _size: int) -> None:
    pass


def test_import_fails_if_the_file_is_truncated_meanwhile(tmp_path: Path) -> None:
    """The error names the line that changed, and nothing is written."""
    path = write_session(tmp_path / "session.jsonl", make_claude_line, 40)
    for source in iter_recordings(str(path), progress=ignore_progress):
        recording = source.read()
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(FormatError, match=r"line 2[0-9] was changed while the file was read"):
            list(recording.entries)


@LINES
def test_import_fails_if_a_line_is_overwritten_meanwhile(tmp_path: Path, make_line: Line) -> None:
    """Another line of the same length is not taken for the one that was read."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    for source in iter_recordings(str(path), progress=ignore_progress):
        recording = source.read()
        path.write_bytes(path.read_bytes().replace(b"quick brown", b"brown quick"))
        with pytest.raises(FormatError, match=r"line \d was changed while the file was read"):
            list(recording.entries)


@LINES
def test_iter_recordings_ignores_bytes_appended_meanwhile(
    tmp_path: Path, make_line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last line without its end counts as cut off, even if its end is written at that moment."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    data = path.read_bytes().replace(b'"s1"', b'""')
    path.write_bytes(data[:-100])
    expected = next(iter_recordings(str(path))).read()

    def lines(file: BinaryIO, *rest: Any) -> Iterator[bytes]:
        for line in read_lines(file, *rest):
            if not line.endswith(b"\n"):
                path.write_bytes(data + data)
            yield line

    read_lines = recordings._iterate_file_lines
    monkeypatch.setattr(recordings, "_iterate_file_lines", lines)
    for source in iter_recordings(str(path), progress=ignore_progress):
        by_line = source.read()
        assert (by_line.problems, by_line.leaf, by_line.session) == (expected.problems, expected.leaf, expected.session)
        assert tuple(by_line.entries) == expected.entries


def test_deep_line_raises_recursion_error_on_the_second_read(tmp_path: Path) -> None:
    """A line that can be read at first may be too deep for a read further down the stack, and is not reported as
    changed. From Python 3.12 on a decoder's depth does not count as the program's, so there it is read again.
    """

    def read_deeper(steps: int) -> list[Entry]:
        return read_deeper(steps - 1) if steps else list(recording.entries)

    path = write_session(tmp_path / "session.jsonl", make_claude_line, 2)
    path.write_bytes(path.read_bytes().replace(b'"text":', b'"x": ' + b"[" * 500 + b"]" * 500 + b', "text":'))
    for source in iter_recordings(str(path), progress=ignore_progress):
        recording = source.read()
        assert len(recording.entries) == 4
        if sys.version_info >= (3, 12):
            assert read_deeper(480) == list(recording.entries)
            continue
        with pytest.raises(RecursionError, match="nested too deeply"):
            read_deeper(480)


def test_import_dash_reads_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` means standard input, even if a file has that name."""
    monkeypatch.chdir(tmp_path)
    write_session(tmp_path / "-", make_claude_line, 6)
    content = write_session(tmp_path / "session.jsonl", make_pi_line, 6).read_bytes()
    result = CliRunner().invoke(import_command, ["-", "--store", "s.db", "--json"], input=content)
    assert [report["format"] for report in json.loads(result.output)] == ["pi"]


def test_iter_recordings_reports_progress_in_bytes(tmp_path: Path) -> None:
    """Progress is reported about a hundred times in a file, and at its end."""
    path = write_session(tmp_path / "session.jsonl", make_claude_line, 400)
    size = path.stat().st_size
    reports: list[tuple[int, int]] = []
    for source in iter_recordings(str(path), progress=lambda done, total: reports.append((done, total))):
        source.read()
    assert reports == sorted(reports)
    assert {total for _, total in reports} == {size}
    assert reports[-1][0] == size
    assert 50 < len(reports) <= 101
