"""The instances that were enabled: their records, and the plan of a new one. This module does no I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import msgspec
from msgspec import Struct

from holdfast.cli.always_on.client_pointing import PointingRequest, plan_pointing
from holdfast.cli.always_on.file_changes import (
    AppliedChange,
    FileChange,
    OwnFile,
    UndoneChange,
    record_change,
    undo_change,
)
from holdfast.cli.always_on.service_files import ServiceDescription, locate_service_file, render_service_file
from holdfast.errors import ConfigError
from holdfast.state.codec.reading import get_decoder

DEFAULT_NAME = "default"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
"""Names become parts of file names and of unit names."""


class InstanceRecord(Struct, frozen=True):
    """An enabled instance, as it is kept to be undone."""

    name: str
    port: int
    url: str
    store: str
    manager: str
    """``systemd``, ``launchd``, or ``none`` where the user starts the proxy."""
    log: str
    clients: tuple[str, ...]
    service: ServiceDescription
    changes: tuple[AppliedChange, ...]
    created_folders: tuple[str, ...] = ()
    """Folders that did not exist before, the innermost first."""


class EnablePlan(Struct, frozen=True):
    """Everything that enabling an instance writes."""

    service_changes: tuple[FileChange, ...]
    client_changes: tuple[FileChange, ...]
    notes: tuple[str, ...]

    @property
    def changes(self) -> tuple[FileChange, ...]:
        """All changes, in the order they are written: no client is pointed at a proxy that does not run."""
        return self.service_changes + self.client_changes


def check_instance_name(name: str) -> None:
    """Raise ``ConfigError`` if ``name`` cannot name an instance."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} cannot name an instance; give up to 40 letters, digits, - and _")


def locate_instance_files(data_folder: str, name: str) -> tuple[str, str]:
    """Return the paths of the record and of the log of an instance."""
    folder = PurePath(data_folder, "instances")
    return str(folder / f"{name}.json"), str(folder / f"{name}.log")


def plan_enable(request: PointingRequest, manager: str, service: ServiceDescription) -> EnablePlan:
    """Plan the files of an instance. Raises ``ConfigError`` for settings of clients that cannot be read."""
    service_changes = []
    if manager != "none":
        path = locate_service_file(manager, service, request.environment.home, request.environment.environment)
        if path in request.file_bytes:
            raise ConfigError(f"{path} exists already and is not known to holdfast; remove it, or give another --name")
        service_changes.append(FileChange(path, None, render_service_file(manager, service), (OwnFile(),)))
    pointing = plan_pointing(request)
    return EnablePlan(tuple(service_changes), pointing.changes, pointing.notes)


def record_changes(changes: Sequence[FileChange]) -> tuple[AppliedChange, ...]:
    """Return what is needed to undo all ``changes``."""
    return tuple(map(record_change, changes))


def plan_disable(record: InstanceRecord, current: Mapping[str, bytes]) -> tuple[UndoneChange, ...]:
    """Plan how each file of an instance looks without it; ``current`` holds those that exist, by path."""
    return tuple(undo_change(applied, current.get(applied.path)) for applied in reversed(record.changes))


def encode_record(record: InstanceRecord) -> bytes:
    """Encode a record as JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def decode_record(data: bytes, path: str) -> InstanceRecord:
    """Decode a record. Raises ``ConfigError`` for one that is damaged."""
    try:
        return get_decoder(InstanceRecord).decode(data)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); undo the changes by hand and remove it") from error


def find_pointing_files(changes: Sequence[AppliedChange], url: str, current: Mapping[str, bytes]) -> list[str]:
    """Return the files among ``changes`` that still name the proxy at ``url``."""
    return [applied.path for applied in changes if url.encode() in current.get(applied.path, b"")]
