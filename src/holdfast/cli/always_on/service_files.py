"""The files that describe the service: a systemd user unit, or a launchd agent. This module does no I/O."""

from __future__ import annotations

import plistlib
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from msgspec import Struct

SERVICE_MANAGERS = {"linux": "systemd", "darwin": "launchd"}
"""The service manager of each platform, by ``sys.platform``."""
RESTART_SECONDS = 5
"""Seconds before a proxy that failed is started again. Chosen by judgement: long enough not to burn a core where the
port is taken, short enough that a client's own retries outlast it."""
PRIVATE_UMASK = 0o077
"""The log names sessions, so only its user may read it."""


class ServiceDescription(Struct, frozen=True):
    """The service of an instance: what it runs, in which folder, and where its output goes."""

    name: str
    command: tuple[str, ...]
    folder: str
    log: str

    @property
    def unit_name(self) -> str:
        """The name of the systemd unit."""
        return f"holdfast-{self.name}.service"

    @property
    def label(self) -> str:
        """The label of the launchd agent."""
        return f"holdfast.{self.name}"


def locate_service_file(manager: str, service: ServiceDescription, home: str, environment: Mapping[str, str]) -> str:
    """Return the path of the service's file; ``manager`` is ``systemd`` or ``launchd``."""
    if manager == "launchd":
        return str(PurePath(home, "Library/LaunchAgents", f"{service.label}.plist"))
    config_home = environment.get("XDG_CONFIG_HOME") or str(PurePath(home, ".config"))
    return str(PurePath(config_home, "systemd/user", service.unit_name))


def render_service_file(manager: str, service: ServiceDescription) -> bytes:
    """Return the service's file for ``manager``, ``systemd`` or ``launchd``."""
    return _render_plist(service) if manager == "launchd" else _render_unit(service)


def _render_unit(service: ServiceDescription) -> bytes:
    lines = [
        "# Written by holdfast enable; holdfast disable removes it.",
        "[Unit]",
        f"Description=Holdfast proxy, instance {service.name}",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={_quote_command(service.command)}",
        f"WorkingDirectory={_escape_specifiers(service.folder)}",
        f"StandardOutput=append:{_escape_specifiers(service.log)}",
        f"StandardError=append:{_escape_specifiers(service.log)}",
        f"UMask={PRIVATE_UMASK:04o}",
        "Restart=on-failure",
        f"RestartSec={RESTART_SECONDS}",
        "",
        "[Install]",
        "WantedBy=default.target",
        "",
    ]
    return "\n".join(lines).encode()


def _quote_command(command: Sequence[str]) -> str:
    """Quote the words of a command as systemd reads them."""
    words = []
    for word in command:
        escaped = _escape_specifiers(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
        words.append(f'"{escaped}"')
    return " ".join(words)


def _escape_specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _render_plist(service: ServiceDescription) -> bytes:
    return plistlib.dumps(
        {
            "Label": service.label,
            "ProgramArguments": list(service.command),
            "WorkingDirectory": service.folder,
            "StandardOutPath": service.log,
            "StandardErrorPath": service.log,
            "Umask": PRIVATE_UMASK,
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_SECONDS,
        }
    )
