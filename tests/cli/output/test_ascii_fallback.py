"""What is printed if the encoding lacks our symbols."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.cli.output.ascii_fallback import ASCII_FALLBACK


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        ("→ Read · 5 × …", "ascii", b"> Read - 5 x ."),
        ("⟱ café 世界", "ascii", b"v caf? ??"),
        ("█▅▁ · café", "latin-1", "#+_ · café".encode("latin-1")),
        ("→ · 世", "utf-8", "→ · 世".encode()),
    ],
)
def test_ascii_fallback_replaces_each_symbol_by_one_character(text, encoding, expected):
    """Each of our symbols becomes one character that the encoding has, so that columns stay; others become ``?``."""
    assert text.encode(encoding, ASCII_FALLBACK) == expected


def test_ascii_fallback_does_not_apply_to_decoding():
    """Bytes that cannot be decoded stay an error."""
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", ASCII_FALLBACK)


def test_show_prints_ascii_arrows_on_an_ascii_terminal(run, session):
    """On an ASCII terminal arrows and bars are printed as ASCII."""
    run("import", session)
    show = [sys.executable, "-m", "holdfast", "show", "5e551011"]
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run(show, capture_output=True, env=env, check=True)
    assert b" > Read {" in result.stdout
    assert b"?" not in result.stdout


def test_help_prints_on_an_ascii_terminal():
    """The help page is printed on an ASCII terminal."""
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run([sys.executable, "-m", "holdfast", "--help"], capture_output=True, env=env, check=False)
    assert (result.returncode, result.stderr, b"Commands:" in result.stdout) == (0, b"", True)
