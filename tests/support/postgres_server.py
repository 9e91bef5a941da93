"""A real PostgreSQL server for tests, started from the programs of this machine in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

PROGRAM_FOLDERS = "/usr/lib/postgresql/*/bin"
"""Where Debian puts the programs of each version."""
REQUIRE_VARIABLE = "HOLDFAST_REQUIRE_POSTGRES"
"""Set where tests that need a server must run and not be skipped, as ``.ci/run --thorough`` does."""
START_SECONDS = 30.0
"""Seconds that a server may take to start."""
SERVER_USER = "postgres"
"""The user as which the server runs if the tests run as root, which the server refuses."""
ROLE = "holdfast_app"
"""The role of the store: no superuser, since those are above the rules that keep tenants apart."""


def find_postgres_programs() -> Path | None:
    """Return the folder with the programs of the newest PostgreSQL of this machine, or None."""
    folders = sorted(
        (folder for folder in Path("/").glob(PROGRAM_FOLDERS.removeprefix("/")) if (folder / "initdb").exists()),
        key=lambda folder: int(folder.parent.name.partition(".")[0]),
    )
    if folders:
        return folders[-1]
    initdb = shutil.which("initdb")
    return Path(initdb).parent if initdb else None


PASSWORD_ROLE, PASSWORD = "holdfast_password", "correct-horse"
"""A role that needs its password on the loopback."""


def require_postgres_programs() -> Path:
    """Return that folder; without it the test is skipped, or fails where ``REQUIRE_VARIABLE`` is set."""
    programs = find_postgres_programs()
    if programs is not None:
        return programs
    reason = "PostgreSQL's server is not installed here (Debian: apt install postgresql)"
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(reason)
    pytest.skip(reason)


class PostgresServer:
    """A server on a socket in its own folder, and on the loopback with a password-free login."""

    def __init__(self, programs: Path, *settings: str) -> None:
        self._programs = programs
        self._settings = settings
        # Short: the path of a socket may have about a hundred characters.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self.port = _find_free_port()
        self._user = SERVER_USER if os.geteuid() == 0 else None
        self.superuser = self._user or pwd.getpwuid(os.geteuid()).pw_name
        self.process: subprocess.Popen[bytes] | None = None
        if self._user is not None:
            shutil.chown(self.folder, self._user)
        self.folder.chmod(0o755)  # other users' clients must find the socket

    def __enter__(self) -> Self:
        self._run("initdb", "--pgdata", str(self.folder / "data"), "--no-sync", "--auth=trust", "--encoding=UTF8")
        rules = self.folder / "data" / "pg_hba.conf"
        rules.write_text(f"host all {PASSWORD_ROLE} 127.0.0.1/32 scram-sha-256\n{rules.read_text()}")
        self.start()
        self.run_sql(f"CREATE ROLE {PASSWORD_ROLE} LOGIN PASSWORD '{PASSWORD}'")
        self.run_sql(f"CREATE ROLE {ROLE} LOGIN; CREATE DATABASE store OWNER {ROLE}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [
            "fsync=off",
            f"unix_socket_directories={self.folder}",
            "listen_addresses=127.0.0.1",
            *self._settings,
        ]
        arguments = [str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        for setting in settings:
            arguments += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log, user=self._user, cwd="/")
        end = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "log").read_text())
            time.sleep(0.05)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server: ``immediate`` as after a crash, ``fast`` in order."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self._run("pg_ctl", "stop", "-D", str(self.folder / "data"), "-m", mode)
        self.process.wait()
        self.process = None

    def kill(self) -> None:
        """End the server and all its processes with SIGKILL, as when the machine is lost."""
        if self.process is None:
            return
        # The postmaster cannot end its children any more, so they come first; each ends on its own without it.
        self.process.kill()
        self.process.wait()
        self.process = None
        pid_file = self.folder / "data" / "postmaster.pid"
        end = time.monotonic() + START_SECONDS
        # A new server refuses to start as long as one of them has the shared memory.
        while time.monotonic() < end and not self._can_start(pid_file):
            time.sleep(0.05)

    def url(self, *, tcp: bool = False, user: str = ROLE, database: str = "store", **ours: str) -> str:
        """Return the address of a store; ``ours`` are settings of ours, without their prefix."""
        options = [f"holdfast_{name}={value}" for name, value in ours.items()]
        if tcp:
            address = f"postgresql://{user}@127.0.0.1:{self.port}/{database}"
        else:
            address = f"postgresql://{user}@/{database}"
            options += [f"host={self.folder}", f"port={self.port}"]
        return address + ("?" + "&".join(options) if options else "")

    def run_sql(self, statements: str, database: str = "postgres", user: str | None = None) -> str:
        """Run statements with psql, as the superuser by default, and return what it printed, unadorned."""
        connection = ["-h", str(self.folder), "-p", str(self.port), "-U", user or self.superuser, "-d", database]
        arguments = ["psql", *connection, "-XAtq", "-v", "ON_ERROR_STOP=1"]
        for statement in statements.split(";"):
            if statement.strip():
                arguments += ["-c", statement]
        return self._run(*arguments)

    def _can_start(self, pid_file: Path) -> bool:
        if not pid_file.exists():
            return True
        return not _list_processes_below(self.folder)

    def _is_ready(self) -> bool:
        try:
            self.run_sql("SELECT 1")
        except subprocess.CalledProcessError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, user=self._user, cwd="/", check=False)
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout


def _find_free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _list_processes_below(folder: Path) -> list[int]:
    """Return the processes that work in the server's folder of data."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if link.readlink().is_relative_to(folder):
                found.append(int(link.parent.name))
        except (OSError, ValueError):
            continue
    return found
