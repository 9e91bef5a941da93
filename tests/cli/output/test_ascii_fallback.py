"""What is printed where the encoding has no signs like ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.cli.output.ascii_fallback import ASCII_FALLBACK


@pytest.mark.parametrize(
    ("said", "encoding", "told"),
    [
        ("→ Read · 5 × …", "ascii", b"> Read - 5 x ."),
        ("⟱ café 世界", "ascii", b"v caf? ??"),
        ("█▅▁ · café", "latin-1", "#+_ · café".encode("latin-1")),
        ("→ · 世", "utf-8", "→ · 世".encode()),
    ],
)
def test_a_sign_has_a_plainer_one(said, encoding, told):
    """Each sign of ours gives way to one sign that the encoding has, so that columns stay; all others to a ``?``."""
    assert said.encode(encoding, ASCII_FALLBACK) == told


def test_bytes_are_not_made_up():
    """It is for writing alone: what cannot be read stays an error."""
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", ASCII_FALLBACK)


def test_a_command_in_ascii(run, session):
    """A terminal that knows ASCII alone is shown arrows and bars of it."""
    run("import", session)
    show = [sys.executable, "-m", "holdfast", "show", "5e551011"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(show, capture_output=True, env=env, check=True)
    assert b" > Read {" in done.stdout
    assert b"?" not in done.stdout


def test_the_page_of_help_in_ascii():
    """The first page that anybody sees is shown there too."""
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "holdfast", "--help"], capture_output=True, env=env, check=False)
    assert (done.returncode, done.stderr, b"Commands:" in done.stdout) == (0, b"", True)
