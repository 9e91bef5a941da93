"""What importing a session takes of memory, and what it tells meanwhile."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from click.testing import CliRunner

from holdfast.cli.commands.import_ import command
from holdfast.cli.files import recordings
from holdfast.cli.files.recordings import iter_recordings
from holdfast.errors import FormatError
from holdfast.formats import read_recording
from holdfast.state.entries import Entry

HIGHEST_GROWTH = 2.0
"""Bytes of memory for one more byte of a file of short lines: what orders its lines, and no text of it.

While files were held as a whole it was over seven.
"""
WORDS = "the 🙂 quick brown fox jumps over the lazy dog and writes a long line of output " * 25
TIME = "2026-01-01T00:00:00.000Z"


def claude_line(number: int) -> dict[str, object]:
    role = "assistant" if number % 2 else "user"
    link = {"uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None}
    message = {"role": role, "content": [{"type": "text", "text": f"{number} {WORDS}"}]}
    return {"type": role, "sessionId": "s1", "timestamp": TIME, "message": message} | link


def codex_line(number: int) -> dict[str, object]:
    if not number:
        return {"timestamp": TIME, "type": "session_meta", "payload": {"id": "s1", "cwd": "/x"}}
    role, kind = ("assistant", "output_text") if number % 2 else ("user", "input_text")
    item = {"type": "message", "role": role, "content": [{"type": kind, "text": f"{number} {WORDS}"}]}
    return {"timestamp": TIME, "type": "response_item", "payload": item}


def pi_line(number: int) -> dict[str, object]:
    if not number:
        return {"type": "session", "version": 3, "id": "s1", "timestamp": TIME, "cwd": "/x"}
    message = {"role": "user", "content": [{"type": "text", "text": f"{number} {WORDS}"}]}
    parent = f"e{number - 1}" if number > 1 else None
    return {"type": "message", "id": f"e{number}", "parentId": parent, "timestamp": TIME, "message": message}


LINES = pytest.mark.parametrize("make_line", [claude_line, codex_line, pi_line])
Line = Callable[[int], dict[str, object]]


def write_session(path: Path, make_line: Line, count: int) -> Path:
    lines = [json.dumps(make_line(number), ensure_ascii=False) for number in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def as_array(data: bytes) -> bytes:
    return b"[\n" + b",\n".join(data.splitlines()) + b"\n]\n"


def peak_of_import(file: Path, store: str) -> int:
    tracemalloc.start()
    try:
        done = CliRunner().invoke(command, [str(file), "--store", store])
        assert done.exit_code == 0, done.output
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
@LINES
def test_import_holds_no_words_of_a_file(tmp_path: Path, make_line: Line) -> None:
    """Neither the first import of a file nor a second one grows with the texts in it."""
    peak_of_import(write_session(tmp_path / "warm.jsonl", make_line, 4), f"{tmp_path}/warm.db")  # modules are loaded
    small = write_session(tmp_path / "small.jsonl", make_line, 1_000)
    large = write_session(tmp_path / "large.jsonl", make_line, 2_000)
    more = large.stat().st_size - small.stat().st_size
    for _ in ("first", "again"):
        grown = peak_of_import(large, f"{tmp_path}/large.db") - peak_of_import(small, f"{tmp_path}/small.db")
        assert grown < HIGHEST_GROWTH * more


@LINES
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda data: data, id="as it is"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="with a BOM"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), id="with line ends of Windows"),
        pytest.param(lambda data: data.replace(b"\n", b"\n\n \n", 1), id="with blank lines"),
        pytest.param(as_array, id="as an array"),
        pytest.param(lambda data: b" \n" * 600 + as_array(data), id="as an array behind many blanks"),
        pytest.param(lambda data: data[:-100], id="cut off"),
        pytest.param(lambda data: data.removesuffix(b"\n"), id="without a last line end"),
        pytest.param(lambda data: data.replace("🙂".encode(), b"\xff", 1), id="with bytes that are no UTF-8"),
        pytest.param(lambda data: data + b"{no json\n", id="with a damaged line"),
        pytest.param(lambda data: data.replace(b'"s1"', b'""'), id="without an id"),
    ],
)
def test_a_file_read_by_lines_is_what_it_is_read_as_a_whole(
    tmp_path: Path, make_line: Line, change: Callable[[bytes], bytes]
) -> None:
    """Reading a file line by line finds the entries, problems and leaf that reading all its bytes finds."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    path.write_bytes(change(path.read_bytes()))
    whole = read_recording(path.read_bytes())
    for source in iter_recordings(str(path), progress=tell_nobody):
        lazily = source.read()
        assert lazily.session
        assert tuple(lazily.entries) == whole.entries
        assert (lazily.leaf, lazily.problems) == (whole.leaf, whole.problems)
        assert (lazily.format, lazily.skipped_counts) == (whole.format, whole.skipped_counts)


def tell_nobody(_done: int, _size: int) -> None:
    pass


def test_a_file_that_changes_while_it_is_read_is_told(tmp_path: Path) -> None:
    """An import whose file was cut short meanwhile ends in an error that names the line, and writes nothing."""
    path = write_session(tmp_path / "session.jsonl", claude_line, 40)
    for source in iter_recordings(str(path), progress=tell_nobody):
        found = source.read()
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size // 2)
        with pytest.raises(FormatError, match=r"line 2[0-9] was changed while the file was read"):
            list(found.entries)


@LINES
def test_a_line_that_was_written_over_meanwhile_is_told(tmp_path: Path, make_line: Line) -> None:
    """Nor is another line of the same length taken for the one that was read."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    for source in iter_recordings(str(path), progress=tell_nobody):
        found = source.read()
        path.write_bytes(path.read_bytes().replace(b"quick brown", b"brown quick"))
        with pytest.raises(FormatError, match=r"line \d was changed while the file was read"):
            list(found.entries)


@LINES
def test_what_is_written_while_a_file_is_read_is_not_looked_at(
    tmp_path: Path, make_line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line whose end is written just then is one that was cut off, and none comes behind it."""
    path = write_session(tmp_path / "session.jsonl", make_line, 6)
    data = path.read_bytes().replace(b'"s1"', b'""')
    path.write_bytes(data[:-100])
    whole = next(iter_recordings(str(path))).read()

    def lines(file: BinaryIO, *rest: Any) -> Iterator[bytes]:
        for line in read_lines(file, *rest):
            if not line.endswith(b"\n"):
                path.write_bytes(data + data)
            yield line

    read_lines = recordings._iterate_file_lines
    monkeypatch.setattr(recordings, "_iterate_file_lines", lines)
    for source in iter_recordings(str(path), progress=tell_nobody):
        lazily = source.read()
        assert (lazily.problems, lazily.leaf, lazily.session) == (whole.problems, whole.leaf, whole.session)
        assert tuple(lazily.entries) == whole.entries


def test_a_line_too_deep_to_be_read_again_is_not_called_a_changed_one(tmp_path: Path) -> None:
    """What can be read at first may be nested too deeply for a second reading from further down the stack."""

    def read_deeper(steps: int) -> list[Entry]:
        return read_deeper(steps - 1) if steps else list(found.entries)

    path = write_session(tmp_path / "session.jsonl", claude_line, 2)
    path.write_bytes(path.read_bytes().replace(b'"text":', b'"x": ' + b"[" * 500 + b"]" * 500 + b', "text":'))
    for source in iter_recordings(str(path), progress=tell_nobody):
        found = source.read()
        assert len(found.entries) == 4
        with pytest.raises(RecursionError, match="nested too deeply"):
            read_deeper(450)


def test_standard_input_is_no_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-`` is what comes in, also where a file is called so."""
    monkeypatch.chdir(tmp_path)
    write_session(tmp_path / "-", claude_line, 6)
    given = write_session(tmp_path / "session.jsonl", pi_line, 6).read_bytes()
    done = CliRunner().invoke(command, ["-", "--store", "s.db", "--json"], input=given)
    assert [one["format"] for one in json.loads(done.output)] == ["pi"]


def test_progress_moves_within_a_file_by_its_bytes(tmp_path: Path) -> None:
    """Whoever waits is told about a hundred times how many bytes are read, and at the end of all."""
    path = write_session(tmp_path / "session.jsonl", claude_line, 400)
    size = path.stat().st_size
    told: list[tuple[int, int]] = []
    for source in iter_recordings(str(path), progress=lambda done, total: told.append((done, total))):
        source.read()
    assert told == sorted(told)
    assert {total for _, total in told} == {size}
    assert told[-1][0] == size
    assert 50 < len(told) <= 101
