"""What a client needs on disk to be started: its own files read, ours written, and all of it taken away behind it."""

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

from holdfast.cli.clients.client_settings import Place
from holdfast.cli.clients.launch import Launch, Order, launch, program, sources

PATIENCE = 10.0
"""[H] Seconds that Codex may take to say how it is logged in; it takes 0.1. [M]"""
LARGEST = 20_000_000
"""[H] Bytes of a file of settings that is read; opencode's list of providers has 3 MB."""


class Started(Struct, frozen=True):
    """A client that can be started: its command whole, its variables, and what it does past the proxy."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()


def place_of(client: str) -> Place:
    """Return where ``client`` is started, its files of settings read."""
    here = Path.cwd()
    root = next((str(folder) for folder in (here, *here.parents) if (folder / ".git").exists()), "")
    place = Place(os.environ, str(Path.home()), str(here), root=root)
    texts = {path: text for path in sources(client, place) if (text := _text(Path(path))) is not None}
    return replace(place, texts=texts)


def _text(path: Path) -> str | None:
    """Return what is in a file; nothing for what is none, or cannot be read: its client will tell."""
    with suppress(OSError, UnicodeError):
        if path.is_file() and path.stat().st_size <= LARGEST:
            return path.read_text("utf-8-sig")
    return None


@contextmanager
def started(command: Sequence[str], path: str, proxy: str, fixed: frozenset[str], token: str = "") -> Iterator[Started]:
    """Yield how ``command``, whose program is at ``path``, is started beside the proxy at the address ``proxy``.

    ``fixed`` are the upstreams that were asked for, ``token`` is what the proxy wants to be told. The temporary folder
    is there as long as the block lasts; what the client put into it goes where it belongs.
    """
    client = program(command[0])
    place = place_of(client)
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        is_chatgpt = client == "codex" and _is_chatgpt(path, place.environment)
        made = launch(client, Order(proxy, place, tuple(command[1:]), folder, fixed, is_chatgpt, token))
        _laid_out(made, Path(folder))
        try:
            whole = (path, *made.arguments, *command[1:])
            yield Started(whole, {**place.environment, **made.environment}, made.notes)
        finally:
            _brought_home(made, Path(folder))


def _is_chatgpt(path: str, environment: Mapping[str, str]) -> bool:
    """Return whether Codex says that it is logged in with ChatGPT; its file of logins is not looked at."""
    if environment.get("CODEX_API_KEY"):
        return False
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(  # noqa: S603  the client that the user asked for
            [path, "login", "status"], stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False
        )
        return done.returncode == 0 and b"ChatGPT" in done.stdout + done.stderr
    return False


def _laid_out(made: Launch, folder: Path) -> None:
    """Write the temporary files, and links to what is mirrored."""
    for name, text in made.files.items():
        (folder / name).write_text(text, "utf-8")
    if made.mirrored:
        for one in Path(made.mirrored).iterdir():
            if one.name not in made.files:
                (folder / one.name).symlink_to(one)


def _brought_home(made: Launch, folder: Path) -> None:
    """Move what is new in a mirrored folder to where it would be without us."""
    for one in folder.iterdir() if made.mirrored else ():
        if one.name not in made.files and not one.is_symlink():
            with suppress(OSError):
                shutil.move(one, Path(made.mirrored) / one.name)
