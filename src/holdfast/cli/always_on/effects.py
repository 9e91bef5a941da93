"""What touches the machine: reading and writing files, and the service manager."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.cli.always_on.service_files import ServiceDescription
from holdfast.cli.clients.client_check import UrlCheck, probe_url
from holdfast.cli.output.errors import CommandError, describe_error
from holdfast.messages.text.counts import format_count

MANAGER_TIMEOUT = 30.0
"""Seconds that one call of the service manager may take. Chosen by judgement: stopping waits for running answers."""
START_TIMEOUT = 20.0
"""Seconds to wait for the proxy to answer. Chosen by judgement: it starts in about one, a busy machine needs more."""
START_POLL = 0.1
NEW_FILE_MODE = 0o600
NEW_FOLDER_MODE = 0o700


# -- files -------------------------------------------------------------------------------------------------------------


def read_existing_files(paths: Iterable[str]) -> dict[str, bytes]:
    """Read those of ``paths`` that exist. Raises ``CommandError`` for one that cannot be read."""
    contents = {}
    for path in paths:
        try:
            contents[path] = Path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise CommandError(f"nothing was changed: {describe_error(error)}") from error
    return contents


def find_unwritable_path(paths: Iterable[str]) -> str:
    """Return the first of ``paths`` that cannot be written or made, or an empty string."""
    for path in paths:
        # A new file is put in the place of the old one, so the folder must be writable, not only the file.
        target = Path(os.path.realpath(path))
        folder = next(parent for parent in target.parents if os.access(parent, os.F_OK))
        is_file_writable = not os.access(target, os.F_OK) or os.access(target, os.W_OK)
        if not (is_file_writable and folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            return path
    return ""


def list_missing_folders(paths: Iterable[str]) -> tuple[str, ...]:
    """List the folders that must be made for ``paths``, the innermost first."""
    missing: set[str] = set()
    for path in paths:
        missing.update(str(parent) for parent in Path(path).parents if not parent.exists())
    return tuple(sorted(missing, key=lambda folder: (-len(Path(folder).parts), folder)))


def write_file(path: str, data: bytes | None) -> None:
    """Replace a file as a whole, or remove it if ``data`` is None. Links are followed, and the mode stays."""
    target = Path(os.path.realpath(path))
    if data is None:
        target.unlink(missing_ok=True)
        return
    for folder in reversed([parent for parent in target.parents if not parent.exists()]):
        folder.mkdir(NEW_FOLDER_MODE)
    mode = target.stat().st_mode & 0o7777 if target.exists() else NEW_FILE_MODE
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)  # noqa: PTH101  a name of tempfile's
        os.replace(temporary, target)  # noqa: PTH105  the same
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108  the same
        raise


def remove_empty_folders(folders: Iterable[str]) -> None:
    """Remove those of ``folders`` that are empty."""
    for folder in folders:
        with suppress(OSError):
            Path(folder).rmdir()


# -- the service manager -----------------------------------------------------------------------------------------------


def check_service_manager(manager: str) -> str:
    """Return why the service manager cannot be used, or an empty string; nothing is changed."""
    program = "launchctl" if manager == "launchd" else "systemctl"
    if shutil.which(program) is None:
        return f"there is no {program} on this machine"
    if manager == "launchd":
        return _call_manager("launchctl", "print", _get_launchd_domain())
    return _call_manager("systemctl", "--user", "show", "--property=Version")


def start_service(manager: str, service: ServiceDescription, path: str) -> str:
    """Start the service now and at each login. Return why it failed, or an empty string."""
    if manager == "launchd":
        return _call_manager("launchctl", "bootstrap", _get_launchd_domain(), path)
    return _call_manager("systemctl", "--user", "daemon-reload") or _call_manager(
        "systemctl", "--user", "enable", "--now", service.unit_name
    )


def stop_service(manager: str, service: ServiceDescription) -> str:
    """Stop the service, now and for later. Return why it failed, or an empty string."""
    if manager == "launchd":
        return _call_manager("launchctl", "bootout", f"{_get_launchd_domain()}/{service.label}")
    return _call_manager("systemctl", "--user", "disable", "--now", service.unit_name)


def forget_service(manager: str, path: str) -> None:
    """Make the service manager forget a service whose file at ``path`` was removed."""
    if manager == "systemd":
        # Only where systemd could not be asked to disable the unit is its link still there.
        link = Path(get_systemd_link(path))
        if link.is_symlink() and not link.exists():
            link.unlink()
        _call_manager("systemctl", "--user", "daemon-reload")


def get_systemd_link(path: str) -> str:
    """Return the link that systemd makes for an enabled unit whose file is at ``path``."""
    file = Path(path)
    return str(file.parent / "default.target.wants" / file.name)


def describe_service_state(manager: str, service: ServiceDescription) -> str:
    """Return the state of the service in the service manager's word, such as ``active`` or ``failed``."""
    if manager == "launchd":
        is_loaded = not _call_manager("launchctl", "print", f"{_get_launchd_domain()}/{service.label}")
        return "loaded" if is_loaded else "not loaded"
    command = ["systemctl", "--user", "is-active", service.unit_name]
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(  # noqa: S603  the fixed words above
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=MANAGER_TIMEOUT, check=False
        )
        return result.stdout.decode("utf-8", "replace").strip() or "unknown"
    return "unknown"


def _get_launchd_domain() -> str:
    return f"gui/{os.getuid()}"


def _call_manager(*command: str) -> str:
    """Call the service manager. Return its complaint, or an empty string."""
    try:
        result = subprocess.run(  # noqa: S603  the words of this module
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=MANAGER_TIMEOUT, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{' '.join(command)}: {error}"
    if result.returncode == 0:
        return ""
    complaint = (result.stderr or result.stdout).decode("utf-8", "replace").strip()
    return f"{' '.join(command)}: {complaint or f'exit code {result.returncode}'}"


# -- the proxy ---------------------------------------------------------------------------------------------------------


def is_port_free(port: int) -> bool:
    """Return whether a server can listen on ``port`` of this machine's loopback address."""
    with socket.socket() as probe:
        # As servers do: a connection that has just ended does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def wait_for_proxy(url: str) -> UrlCheck:
    """Wait until a Holdfast proxy answers at ``url``, and return the last answer."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        answer = probe_url(url, online=False)
        if answer.proxy or time.monotonic() > end:
            return answer
        time.sleep(START_POLL)


def read_log_end(path: str, lines: int = 3) -> str:
    """Return the last lines of a log on one line, or an empty string."""
    with suppress(OSError):
        text = Path(path).read_text("utf-8", "replace")
        return " / ".join(text.strip().splitlines()[-lines:])
    return ""


def find_programs(programs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of ``programs`` whose program is installed."""
    return tuple(name for name, program in programs.items() if program and shutil.which(program))


def describe_log(path: str) -> str:
    """Return the path of a log with its size."""
    with suppress(OSError):
        return f"{path} ({format_count(Path(path).stat().st_size, 'byte')})"
    return f"{path} (not written yet)"
