"""Tools for files: what they read and change, and where they stop."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent.files import MAX_READ_BYTES, EditArguments, edit_file
from holdfast.agent.workspace import open_workspace
from holdfast.engine.environment.folder import resolve_path_inside
from holdfast.errors import FormatError, HoldfastError


def everything(folder):
    """Return every file below ``folder`` with its bytes, and the folders."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# -- staying inside ----------------------------------------------------------------------------------------------------

OUTSIDE = ("../secret.txt", "a/../../secret.txt", "{out}/secret.txt", "/etc/passwd", "out/secret.txt", "link.txt", "/")


@pytest.mark.parametrize("named", OUTSIDE)
@pytest.mark.parametrize(
    ("tool", "given"),
    [
        ("read", {"path": "?"}),
        ("write", {"path": "?", "text": "MINE"}),
        ("edit", {"path": "?", "old": "SECRET", "new": "MINE"}),
        ("ls", {"folder": "?"}),
        ("find", {"pattern": "*", "folder": "?"}),
        ("grep", {"pattern": "SECRET", "folder": "?"}),
    ],
)
def test_no_tool_leaves_the_folder(call, folder, tool, given, named):
    """Dots, absolute paths and links to elsewhere are refused with a result that says so; nothing out there changes."""
    out = folder.parent
    (folder / "a").mkdir()
    (folder / "out").symlink_to(out)
    (folder / "link.txt").symlink_to(out / "secret.txt")
    text, is_error = call(
        tool, **{key: named.format(out=out) if value == "?" else value for key, value in given.items()}
    )
    assert is_error
    assert "outside of the working folder" in text
    assert "SECRET" not in text.replace("'SECRET'", "")
    assert (out / "secret.txt").read_text() == "SECRET"
    assert {path.name for path in out.iterdir()} == {"work", "secret.txt"}


def test_absolute_paths_inside_are_fine(call, folder):
    """A path from the root of the disk is taken where it leads into the folder, and is told below it."""
    assert call("write", path=str(folder / "a" / "b.txt"), text="kelp\n") == ("wrote a/b.txt: 1 line, 5 bytes", False)
    assert call("read", path=str(folder / "a" / "b.txt")) == ("kelp\n", False)


def test_a_link_is_not_followed_where_it_appears_late(call, folder):
    """Searches pass links by, so what lies behind them is not shown either."""
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "own.txt").write_text("SECRET of mine")
    assert call("find", pattern="*.txt") == ("own.txt", False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(alphabet=st.sampled_from("./~a\0\ud800 é\\"), max_size=12))
def test_any_path_is_inside_or_refused(folder, named):
    """Whatever is named, the place found is in the folder; everything else is a typed error."""
    try:
        found = resolve_path_inside(folder, named)
    except HoldfastError:
        return
    assert found == folder or folder in found.parents


# -- reading -----------------------------------------------------------------------------------------------------------


def test_a_file_is_read_as_it_is(call, folder):
    """The whole text comes back byte for byte, line ends and a byte order mark too; an empty file says so."""
    text = "\ufeffone\r\ntwo\rthree\n\n  four é 🌊"
    (folder / "a.txt").write_bytes(text.encode())
    (folder / "empty").touch()
    assert call("read", path="a.txt") == (text, False)
    assert call("read", path="empty") == ("[empty is empty]", False)


@pytest.mark.parametrize(
    ("lines", "shown"),
    [("2", "2-2]\ntwo\n"), ("2-3", "2-3]\ntwo\nthree"), ("2-", "2-3]\ntwo\nthree"), ("3-900", "3-3]\nthree")],
)
def test_a_range_of_lines(call, folder, lines, shown):
    """Lines are counted from 1, the last is included, and the first line says which they are."""
    (folder / "a.txt").write_text("one\ntwo\nthree")
    assert call("read", path="a.txt", lines=lines) == (f"[a.txt: lines {shown}", False)


@pytest.mark.parametrize(
    ("lines", "why"), [("0", "from 1 on"), ("3-2", "from 1 on"), ("x", "12-480"), ("9", "no line 9")]
)
def test_a_range_that_is_none(call, folder, lines, why):
    """Ranges that are none, or beyond the end, are told with what would be one."""
    (folder / "a.txt").write_text("one\ntwo\n")
    text, is_error = call("read", path="a.txt", lines=lines)
    assert is_error
    assert why in text


def test_a_large_file_is_read_in_parts(call, folder):
    """A file of more than a few megabytes wants a range; a part of it is not read beyond what a call may hold."""
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
def test_a_long_line_is_read_in_pieces_without_half_a_letter(call, folder, letter):
    """A line that is longer than a call may hold comes in pieces that are together what stands there."""
    line = "x" + letter * ((MAX_READ_BYTES + 1_000) // len(letter.encode()))
    (folder / "long").write_text(line)
    pieces = [call("read", path="long", lines=str(number)) for number in (1, 2)]
    assert [is_error for _, is_error in pieces] == [False, False]
    assert "".join(text.partition("\n")[2] for text, _ in pieces) == line


@pytest.mark.parametrize(
    ("name", "why"),
    [("pipe", "not a file"), ("folder", "not a file"), ("zero", "zero bytes"), ("gone", "no such")],
)
def test_what_is_no_text(call, folder, name, why):
    """Pipes, folders, binary files and what is not there give an error at once."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "zero").write_bytes(b"\x7fELF\0\0")
    text, is_error = call("read", path=name)
    assert is_error
    assert why in text


# -- changing ----------------------------------------------------------------------------------------------------------


def test_a_file_is_replaced_whole(call, folder):
    """Writing makes folders, keeps permissions, and leaves nothing else behind."""
    assert call("write", path="a/b/c.sh", text="one\ntwo") == ("wrote a/b/c.sh: 2 lines, 7 bytes", False)
    assert call("write", path="a/b/c.sh", text="x") == ("replaced a/b/c.sh: 1 line, 1 byte", False)
    (folder / "a/b/c.sh").chmod(0o755)
    assert call("write", path="a/b/c.sh", text="é\n") == ("replaced a/b/c.sh: 1 line, 3 bytes", False)
    assert (folder / "a/b/c.sh").stat().st_mode & 0o777 == 0o755
    assert everything(folder) == {folder / "a": None, folder / "a/b": None, folder / "a/b/c.sh": "é\n".encode()}


def test_a_link_inside_is_written_through(call, folder):
    """A link to a file of the folder stays one: the file behind it changes."""
    (folder / "real.txt").write_text("old")
    (folder / "link.txt").symlink_to("real.txt")
    call("write", path="link.txt", text="new")
    assert (folder / "link.txt").is_symlink()
    assert (folder / "real.txt").read_text() == "new"


@pytest.mark.parametrize("name", [".", "folder", "pipe", "file/below"])
def test_what_cannot_be_written(call, folder, name):
    """Folders, pipes and places below files are refused, and nothing changes."""
    (folder / "folder").mkdir()
    (folder / "file").write_text("x")
    os.mkfifo(folder / "pipe")
    before = sorted(folder.iterdir())
    assert call("write", path=name, text="x")[1]
    assert sorted(folder.iterdir()) == before


def test_a_piece_is_replaced(call, folder):
    """The rest of the file stays byte for byte."""
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
def test_an_edit_that_is_not_one(call, folder, old, new, why):
    """A text that stands there never or more than once is refused with where it stands, and the file stays."""
    (folder / "a.txt").write_text("x1\nx2\naaa\n\tdeep()\n")
    text, is_error = call("edit", path="a.txt", old=old, new=new)
    assert is_error
    assert why in text
    assert (folder / "a.txt").read_text() == "x1\nx2\naaa\n\tdeep()\n"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    *[st.text(alphabet=st.sampled_from("ab\n\r é"), max_size=8)] * 4,
)
def test_an_edit_replaces_once_or_nothing(folder, before, old, after, new):
    """Law: where ``old`` stands once the file is the text with it replaced; else it is what it was."""
    text = before + old + after
    path = folder / "law.txt"
    path.write_bytes(text.encode())
    try:
        edit_file(open_workspace(folder), EditArguments("law.txt", old, new))
    except FormatError:
        assert path.read_bytes().decode() == text
    else:
        assert path.read_bytes().decode() == before + new + after


def test_a_list_of_a_folder(call, folder):
    """Folders have a slash, links a mark, files their size; an empty folder says so."""
    assert call("ls") == ("[. is empty]", False)
    (folder / "b").mkdir()
    (folder / "a.txt").write_text("kelp")
    (folder / "c").symlink_to("a.txt")
    assert call("ls") == ("a.txt  4\nb/\nc@", False)
    assert call("ls", folder="b") == ("[b is empty]", False)
    assert call("ls", folder="a.txt")[1]
