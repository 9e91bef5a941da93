"""The agent's file tools: read, write, edit, ls and find, and their limits."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.files import MAX_READ_BYTES, EditArguments, edit_file
from holdfast.agent.workspace import open_workspace
from holdfast.engine.environment.folder import resolve_path_inside
from holdfast.errors import FormatError, HoldfastError


def read_all_files(folder):
    """Return the bytes of every file below ``folder`` by path, and None for folders."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# -- staying inside ----------------------------------------------------------------------------------------------------

OUTSIDE = ("../secret.txt", "a/../../secret.txt", "{out}/secret.txt", "/etc/passwd", "out/secret.txt", "link.txt", "/")


@pytest.mark.parametrize("outside_path", OUTSIDE)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("read", {"path": "?"}),
        ("write", {"path": "?", "text": "MINE"}),
        ("edit", {"path": "?", "old": "SECRET", "new": "MINE"}),
        ("ls", {"folder": "?"}),
        ("find", {"pattern": "*", "folder": "?"}),
        ("grep", {"pattern": "SECRET", "folder": "?"}),
    ],
)
def test_file_tools_refuse_paths_outside_the_working_folder(call, folder, tool, arguments, outside_path):
    """Dots, absolute paths and links that lead outside give an error result, and nothing outside changes."""
    out = folder.parent
    (folder / "a").mkdir()
    (folder / "out").symlink_to(out)
    (folder / "link.txt").symlink_to(out / "secret.txt")
    text, is_error = call(
        tool, **{key: outside_path.format(out=out) if value == "?" else value for key, value in arguments.items()}
    )
    assert is_error
    assert "outside of the working folder" in text
    assert "SECRET" not in text.replace("'SECRET'", "")
    assert (out / "secret.txt").read_text() == "SECRET"
    assert {path.name for path in out.iterdir()} == {"work", "secret.txt"}


def test_file_tools_accept_absolute_paths_inside_the_folder(call, folder):
    """An absolute path is accepted if it leads into the folder, and is reported relative to it."""
    assert call("write", path=str(folder / "a" / "b.txt"), text="kelp\n") == ("wrote a/b.txt: 1 line, 5 bytes", False)
    assert call("read", path=str(folder / "a" / "b.txt")) == ("kelp\n", False)


def test_find_skips_links(call, folder):
    """Searches skip links, so what lies behind them is not shown."""
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "own.txt").write_text("SECRET of mine")
    assert call("find", pattern="*.txt") == ("own.txt", False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.sampled_from("./~a\0\ud800 é\\"), max_size=12))
def test_resolve_path_inside_returns_a_path_in_the_folder_or_raises(folder, path):
    """For any text the resolved path is inside the folder, or a typed error is raised."""
    try:
        resolved = resolve_path_inside(folder, path)
    except HoldfastError:
        return
    assert resolved == folder or folder in resolved.parents


# -- reading -----------------------------------------------------------------------------------------------------------


def test_read_returns_the_file_byte_for_byte(call, folder):
    """The whole text comes back with its line ends and byte order mark; an empty file gives a note."""
    text = "\ufeffone\r\ntwo\rthree\n\n  four é 🌊"
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "empty").touch()
    assert call("read", path="a.txt") == (text, False)
    assert call("read", path="empty") == ("[empty is empty]", False)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [("2", "2-2]\ntwo\n"), ("2-3", "2-3]\ntwo\nthree"), ("2-", "2-3]\ntwo\nthree"), ("3-900", "3-3]\nthree")],
)
def test_read_returns_a_range_of_lines(call, folder, lines, expected):
    """Lines are counted from 1, the last one is included, and a header names the range."""
    (folder / "a.txt").write_text("one\ntwo\nthree")
    assert call("read", path="a.txt", lines=lines) == (f"[a.txt: lines {expected}", False)


@pytest.mark.parametrize(
    ("lines", "why"), [("0", "from 1 on"), ("3-2", "from 1 on"), ("x", "12-480"), ("9", "no line 9")]
)
def test_read_explains_an_invalid_range(call, folder, lines, why):
    """An invalid range, or one beyond the end, is an error that describes a valid range."""
    (folder / "a.txt").write_text("one\ntwo\n")
    text, is_error = call("read", path="a.txt", lines=lines)
    assert is_error
    assert why in text


def test_read_splits_a_large_file_into_ranges(call, folder):
    """A file of more than a few megabytes needs a range, and one call returns no more than its limit."""
    line = b"x" * 999 + b"\n"
    (folder / "big").write_bytes(line * (MAX_READ_BYTES // 1_000 + 500))
    text, is_error = call("read", path="big")
    assert is_error
    assert "4,500,000 bytes" in text
    text, is_error = call("read", path="big", lines="1-")
    assert not is_error
    assert len(text) < MAX_READ_BYTES + 100
    assert 'go on with lines="4001-"' in text[:80]
    text, _ = call("read", path="big", lines="4001-")
    assert text.count("\n") == 501


@pytest.mark.parametrize("letter", ["é", "€", "🜚"])
def test_read_splits_a_long_line_between_characters(call, folder, letter):
    """A line longer than the limit comes in pieces that together are the line, with no character split."""
    line = "x" + letter * ((MAX_READ_BYTES + 1_000) // len(letter.encode()))
    (folder / "long").write_text(line)
    pieces = [call("read", path="long", lines=str(number)) for number in (1, 2)]
    assert [is_error for _, is_error in pieces] == [False, False]
    assert "".join(text.partition("\n")[2] for text, _ in pieces) == line


@pytest.mark.parametrize(
    ("name", "why"),
    [("pipe", "not a file"), ("folder", "not a file"), ("zero", "zero bytes"), ("gone", "no such")],
)
def test_read_refuses_pipes_folders_binary_and_missing_files(call, folder, name, why):
    """Reading anything but a text file gives an error at once."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "zero").write_bytes(b"\x7fELF\0\0")
    text, is_error = call("read", path=name)
    assert is_error
    assert why in text


# -- changing ----------------------------------------------------------------------------------------------------------


def test_write_replaces_the_file_and_keeps_its_permissions(call, folder):
    """Writing creates folders, keeps permissions, and leaves no other file."""
    assert call("write", path="a/b/c.sh", text="one\ntwo") == ("wrote a/b/c.sh: 2 lines, 7 bytes", False)
    assert call("write", path="a/b/c.sh", text="x") == ("replaced a/b/c.sh: 1 line, 1 byte", False)
    (folder / "a/b/c.sh").chmod(0o755)
    assert call("write", path="a/b/c.sh", text="é\n") == ("replaced a/b/c.sh: 1 line, 3 bytes", False)
    assert (folder / "a/b/c.sh").stat().st_mode & 0o777 == 0o755
    assert read_all_files(folder) == {folder / "a": None, folder / "a/b": None, folder / "a/b/c.sh": "é\n".encode()}


def test_write_follows_a_link_inside_the_folder(call, folder):
    """A link to a file of the folder stays a link: the file behind it changes."""
    (folder / "real.txt").write_text("old")
    (folder / "link.txt").symlink_to("real.txt")
    call("write", path="link.txt", text="new")
    assert (folder / "link.txt").is_symlink()
    assert (folder / "real.txt").read_text() == "new"


@pytest.mark.parametrize("name", [".", "folder", "pipe", "file/below"])
def test_write_refuses_folders_pipes_and_paths_below_files(call, folder, name):
    """Writing to anything but a file is refused, and nothing changes."""
    (folder / "folder").mkdir()
    (folder / "file").write_text("x")
    os.mkfifo(folder / "pipe")
    files_before = sorted(folder.iterdir())
    assert call("write", path=name, text="x")[1]
    assert sorted(folder.iterdir()) == files_before


def test_edit_replaces_one_piece_and_keeps_the_rest(call, folder):
    """The rest of the file stays byte for byte, its line ends too."""
    (folder / "a.py").write_bytes(b"def f():\r\n    return 1\r\n\r\n# end")
    text, is_error = call("edit", path="a.py", old="f():\n    return 1\n", new="f():\n    return 2\n")
    assert (text, is_error) == ("changed a.py at line 1: 2 lines became 2 lines", False)
    assert (folder / "a.py").read_bytes() == b"def f():\r\n    return 2\r\n\r\n# end"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("x", "y", "more than once, at lines 1, 2"),
        ("aa", "b", "more than once, at lines 3, 3"),
        ("    deep()", "y", r"line 4 has the same words as its first line: '\tdeep()'"),
        ("gone", "y", "does not occur in a.txt exactly like this; read"),
        ("", "y", "old is empty"),
        ("deep", "deep", "nothing would change"),
    ],
)
def test_edit_refuses_a_text_that_does_not_occur_exactly_once(call, folder, old, new, why):
    """A text that is missing or ambiguous is an error that names the lines, and the file stays."""
    (folder / "a.txt").write_text("x1\nx2\naaa\n\tdeep()\n")
    text, is_error = call("edit", path="a.txt", old=old, new=new)
    assert is_error
    assert why in text
    assert (folder / "a.txt").read_text() == "x1\nx2\naaa\n\tdeep()\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    *[st.text(alphabet=st.sampled_from("ab\n\r é"), max_size=8)] * 4,
)
def test_edit_file_replaces_exactly_once_or_changes_nothing(folder, text_before, old, text_after, new):
    """If ``old`` occurs once it is replaced; otherwise the file stays as it was."""
    text = text_before + old + text_after
    path = folder / "law.txt"
    path.write_bytes(text.encode())
    try:
        edit_file(open_workspace(folder), EditArguments("law.txt", old, new))
    except FormatError:
        assert path.read_bytes().decode() == text
    else:
        assert path.read_bytes().decode() == text_before + new + text_after


def test_ls_marks_folders_and_links_and_shows_sizes(call, folder):
    """Folders end in a slash, links in an at sign, files show their size; an empty folder gives a note."""
    assert call("ls") == ("[. is empty]", False)
    (folder / "b").mkdir()
    (folder / "a.txt").write_text("kelp")
    (folder / "c").symlink_to("a.txt")
    assert call("ls") == ("a.txt  4\nb/\nc@", False)
    assert call("ls", folder="b") == ("[b is empty]", False)
    assert call("ls", folder="a.txt")[1]
