"""Find the user's instances: where their records are, and what they say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.cli.always_on.instance import (
    InstanceRecord,
    check_instance_name,
    decode_record,
    locate_instance_files,
)
from holdfast.cli.output.errors import CommandError


def get_home_folder(environment: Mapping[str, str]) -> str:
    """Return the user's home folder. Raises ``CommandError`` if it is not known or does not exist."""
    home = environment.get("HOME", "")
    if not home:
        raise CommandError("HOME is not set, so no settings can be found; set it to your home folder")
    if not Path(home).is_absolute() or not Path(home).is_dir():
        raise CommandError(f"HOME is {home}, which is not a folder; set it to your home folder")
    return home


def find_instances_folder() -> str:
    """Return the folder of this user's data, in which the records are."""
    from platformdirs import user_data_path

    return str(user_data_path("holdfast", appauthor=False))


def load_instances() -> list[InstanceRecord]:
    """Load the records of all instances, by name. Raises ``ConfigError`` for a damaged one."""
    record_path, _ = locate_instance_files(find_instances_folder(), "x")
    paths = sorted(Path(record_path).parent.glob("*.json"))
    return [decode_record(path.read_bytes(), str(path)) for path in paths]


def get_instance(name: str) -> InstanceRecord:
    """Return the record of the instance called ``name``. Raises ``CommandError`` if there is none."""
    # Its own record alone: a damaged one of another instance must not keep this one from being undone.
    check_instance_name(name)
    path = Path(locate_instance_files(find_instances_folder(), name)[0])
    if path.exists():
        return decode_record(path.read_bytes(), str(path))
    names = ", ".join(record.name for record in load_instances())
    hint = f"there are {names}; give one with --name" if names else "holdfast enable makes one"
    raise CommandError(f"there is no instance {name}; {hint}")
