"""``holdfast disable``: undo what ``holdfast enable`` did."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from holdfast.cli.always_on import effects
from holdfast.cli.always_on.file_changes import UndoneChange, render_diff
from holdfast.cli.always_on.instance import (
    DEFAULT_NAME,
    InstanceRecord,
    check_instance_name,
    locate_instance_files,
    plan_disable,
)
from holdfast.cli.always_on.user_instances import find_instances_folder, get_home_folder, get_instance
from holdfast.cli.clients.client_check import probe_url
from holdfast.cli.commands.enable import clean_diff_line
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line

EXAMPLES = """\
\b
Examples:
  holdfast disable --dry-run
  holdfast disable --name work --yes
"""


@click.command("disable", epilog=EXAMPLES)
@click.option("--name", default=DEFAULT_NAME, metavar="INSTANCE", help="The proxy's name. [default: default]")
@click.option("--dry-run", is_flag=True, help="Show what would be undone, and change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; required without a terminal.")
@make_json_option("what was undone and what was left")
def disable_command(name: str, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Undo what holdfast enable did.

    The service is stopped. Files are as they were before, byte for byte, and new files are gone, the log among them.
    From a file that somebody has changed since, only what holdfast wrote is taken out; what cannot be told apart is
    left, with the reason. The store with the sessions stays.
    """
    check_instance_name(name)
    get_home_folder(os.environ)
    record = get_instance(name)
    undone = _plan_undo(record)
    paths = [change.path for change in undone if change.before != change.after]
    if path := effects.find_unwritable_path(paths):
        raise CommandError(f"nothing was changed: {path} cannot be written; give yourself access to it")
    if not as_json:
        _print_undone(undone)
    if dry_run:
        _report_undone(record, undone, is_done=False, as_json=as_json)
        return
    if not yes:
        if as_json or sys.stdin is None or not sys.stdin.isatty():
            raise CommandError("nothing was changed: without a terminal, give --yes to undo this")
        if not click.confirm("Undo this?"):
            click.echo("nothing was changed")
            return
    _stop_running_service(record)
    # Read again, because a running client may have written its settings since.
    undone = _plan_undo(record)
    _restore_files(record, undone)
    _report_undone(record, undone, is_done=True, as_json=as_json)


def _plan_undo(record: InstanceRecord) -> tuple[UndoneChange, ...]:
    return plan_disable(record, effects.read_existing_files(applied.path for applied in record.changes))


def _stop_running_service(record: InstanceRecord) -> None:
    """Stop the service. Raises ``CommandError`` if it refuses to stop; one that does not run needs no stopping."""
    if record.manager == "none":
        return
    why = effects.check_service_manager(record.manager) or effects.stop_service(record.manager, record.service)
    if why and probe_url(record.url, online=False).proxy:
        raise CommandError(
            f"nothing was changed: the service did not stop ({clean_single_line(why)}); end the process on port "
            f"{record.port}, and try again"
        )


def _restore_files(record: InstanceRecord, undone: Sequence[UndoneChange]) -> None:
    for change in undone:
        if change.before != change.after:
            effects.write_file(change.path, change.after)
    if record.manager != "none":
        effects.forget_service(record.manager, record.changes[0].path)
    record_path, log = locate_instance_files(find_instances_folder(), record.name)
    effects.write_file(log, None)
    # The record last, so that an interrupted undo can be finished.
    effects.write_file(record_path, None)
    effects.remove_empty_folders(record.created_folders)


def _print_undone(undone: Sequence[UndoneChange]) -> None:
    for change in undone:
        if change.before != change.after:
            for line in render_diff(change.path, change.before, change.after):
                click.echo(clean_diff_line(line))
            click.echo()
        for reason in change.left:
            click.echo(f"holdfast: left in {clean_single_line(change.path)}: {clean_single_line(reason)}", err=True)


def _report_undone(record: InstanceRecord, undone: Sequence[UndoneChange], *, is_done: bool, as_json: bool) -> None:
    changed = [change for change in undone if change.before != change.after]
    if as_json:
        entries = []
        for change in undone:
            entries.append(
                {
                    "path": change.path,
                    "changed": change.before != change.after,
                    "removed": change.before is not None and change.after is None,
                    "left": list(change.left),
                }
            )
        print_json({"name": record.name, "changes": entries, "done": is_done})
        return
    files = format_count(len(changed), "file")
    if not is_done:
        click.echo(f"{files} would be put back; nothing was")
        return
    click.echo(f"{files} put back; instance {record.name} is gone, and the sessions stay in {record.store}")
    if record.manager == "none":
        click.echo(f"a proxy that you started on port {record.port} keeps running until you stop it")
