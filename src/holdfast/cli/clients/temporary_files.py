"""Prepare the files a client needs to start: read its own, write ours, and clean up after it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from holdfast.cli.clients.client_settings import ClientEnvironment
from holdfast.cli.clients.launch import LaunchPlan, LaunchRequest, get_command_client, list_launch_files, plan_launch

LOGIN_STATUS_TIMEOUT = 10.0
"""Seconds that ``codex login status`` may take. Chosen by judgement: it was measured to take 0.1, and a client that
hangs here must not keep the user from starting it."""
MAX_SETTINGS_BYTES = 20_000_000
"""Larger settings files are not read. Chosen by judgement: the largest known one, opencode's list of providers, has 3
MB."""


class ClientCommand(Struct, frozen=True):
    """A client that is ready to start: its full command, its variables, and notes on requests that bypass the proxy."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()


def load_client_environment(client: str) -> ClientEnvironment:
    """Read the settings files of ``client`` and return the environment it starts in."""
    here = Path.cwd()
    root = ""
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            root = str(folder)
            break
    place = ClientEnvironment(os.environ, str(Path.home()), str(here), repository_root=root)
    texts = {}
    for path in list_launch_files(client, place):
        text = _read_settings_text(Path(path))
        if text is not None:
            texts[path] = text
    return replace(place, file_texts=texts)


def _read_settings_text(path: Path) -> str | None:
    """Return the text of a file, or None if it cannot be read; the client reports that better than we could."""
    with suppress(OSError, UnicodeError):
        if path.is_file() and path.stat().st_size <= MAX_SETTINGS_BYTES:
            return path.read_text("utf-8-sig")
    return None


@contextmanager
def prepare_client(
    command: Sequence[str],
    path: str,
    proxy: str,
    explicit_upstreams: frozenset[str],
    token: str = "",
) -> Iterator[ClientCommand]:
    """Yield the command that starts ``command`` (its program is at ``path``) with the proxy at address ``proxy``.

    ``explicit_upstreams`` are the upstreams set for the proxy, and ``token`` is the token it requires. The temporary
    folder exists as long as the block runs; new files the client left in it are moved to its real folder.
    """
    client = get_command_client(command[0])
    place = load_client_environment(client)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        is_chatgpt = client == "codex" and is_chatgpt_login(path, place.environment)
        launch_request = LaunchRequest(
            proxy,
            place,
            tuple(command[1:]),
            folder,
            explicit_upstreams,
            is_chatgpt,
            token,
        )
        plan = plan_launch(client, launch_request)
        _write_temporary_files(plan, Path(folder))
        try:
            full_command = (path, *plan.arguments, *command[1:])
            yield ClientCommand(full_command, {**place.environment, **plan.environment}, plan.notes)
        finally:
            _move_new_files_back(plan, Path(folder))


def is_chatgpt_login(path: str, environment: Mapping[str, str]) -> bool:
    """Return whether Codex says it is logged in with ChatGPT; its file of logins is not read."""
    # Codex prefers this key over a ChatGPT login.
    if environment.get("CODEX_API_KEY"):
        return False
    with suppress(OSError, subprocess.SubprocessError):
        result = subprocess.run(  # noqa: S603  the client that the user asked for
            [path, "login", "status"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOGIN_STATUS_TIMEOUT,
            check=False,
        )
        return result.returncode == 0 and b"ChatGPT" in result.stdout + result.stderr
    return False


def _write_temporary_files(plan: LaunchPlan, folder: Path) -> None:
    """Write the temporary files, and link the other files of the mirrored folder."""
    for name, text in plan.files.items():
        (folder / name).write_text(text, "utf-8")
    if plan.mirrored_folder:
        for path in Path(plan.mirrored_folder).iterdir():
            if path.name not in plan.files:
                (folder / path.name).symlink_to(path)


def _move_new_files_back(plan: LaunchPlan, folder: Path) -> None:
    """Move new files from the mirrored folder to the real one, where they would be without Holdfast."""
    if not plan.mirrored_folder:
        return
    for path in folder.iterdir():
        # A link is one of ours; a regular file is new.
        if path.name not in plan.files and not path.is_symlink():
            with suppress(OSError):
                shutil.move(path, Path(plan.mirrored_folder) / path.name)
