"""The service's files are valid for their service managers, whatever the paths."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.always_on.service_files import ServiceDescription, locate_service_file, render_service_file

words = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "), min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=4))
def test_plist_holds_the_command_as_it_is(command):
    """launchd gets every word of the command unchanged, and starts it at login and after a failure."""
    service = ServiceDescription("work", tuple(command), "/home/a b", "/home/a b/log")
    agent = plistlib.loads(render_service_file("launchd", service))
    assert agent["ProgramArguments"] == command
    assert agent["Label"] == "holdfast.work"
    assert agent["RunAtLoad"] is True
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["StandardErrorPath"] == "/home/a b/log"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("folder_name", ["plain", "with blank", "100% $HOME", 'quote"d', "back\\slash"])
def test_unit_passes_systemd_analyze(tmp_path, folder_name):
    """systemd accepts the unit without a warning, also with signs in paths that mean something to it."""
    folder = tmp_path / folder_name
    folder.mkdir()
    command = (sys.executable, "-m", "holdfast", "serve", "--port", "8642", "--store", str(folder / "store.db"))
    service = ServiceDescription("work", command, str(folder), str(folder / "log"))
    path = tmp_path / service.unit_name
    path.write_bytes(render_service_file("systemd", service))
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, service.unit_name in result.stderr) == (0, False), result.stderr


def test_service_files_are_in_the_folders_of_their_managers():
    """systemd's units follow ``XDG_CONFIG_HOME``; launchd has one folder."""
    service = ServiceDescription("work", ("x",), "/h", "/h/log")
    assert locate_service_file("systemd", service, "/h", {}) == "/h/.config/systemd/user/holdfast-work.service"
    assert locate_service_file("systemd", service, "/h", {"XDG_CONFIG_HOME": "/c"}).startswith("/c/systemd/user/")
    assert locate_service_file("launchd", service, "/h", {}) == "/h/Library/LaunchAgents/holdfast.work.plist"


def test_signs_that_mean_something_to_systemd_are_escaped():
    """A percent sign, a dollar sign, a quote and a backslash reach the command as they are."""
    service = ServiceDescription("work", ("a%h", "$HOME", 'b"c\\d'), "/h/%u", "/h/%u/log")
    lines = render_service_file("systemd", service).decode().splitlines()
    assert 'ExecStart="a%%h" "$$HOME" "b\\"c\\\\d"' in lines
    assert "WorkingDirectory=/h/%%u" in lines
    assert "StandardOutput=append:/h/%%u/log" in lines
