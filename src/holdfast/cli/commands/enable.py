"""``holdfast enable``: a proxy that is always there, and clients pointed at it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec.structs import replace

from holdfast.cli.always_on import effects
from holdfast.cli.always_on.client_pointing import CLIENT_PROGRAMS, PointingRequest, list_pointing_files
from holdfast.cli.always_on.file_changes import FileChange, render_diff
from holdfast.cli.always_on.instance import (
    DEFAULT_NAME,
    EnablePlan,
    InstanceRecord,
    check_instance_name,
    encode_record,
    locate_instance_files,
    plan_enable,
    record_changes,
)
from holdfast.cli.always_on.service_files import SERVICE_MANAGERS, ServiceDescription, locate_service_file
from holdfast.cli.always_on.user_instances import find_instances_folder, get_home_folder, load_instances
from holdfast.cli.clients.client_settings import ClientEnvironment
from holdfast.cli.files.user_paths import store_option
from holdfast.cli.output.errors import CommandError, describe_error
from holdfast.cli.output.ranges import IntegerParamType
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.cli.proxy_options import MAX_PORT, check_store_url
from holdfast.config import Configuration, load_configuration
from holdfast.config.providers import PROVIDERS
from holdfast.messages.text.counts import format_count
from holdfast.messages.text.single_line import clean_single_line
from holdfast.store.location import find_store_file, has_password, locate_store

DEFAULT_PORT = 8642
NO_CLIENT = "none"
"""Stands in place of clients if none is to be pointed at the proxy."""
EXAMPLES = """\
\b
Examples:
  holdfast enable --dry-run                    show what would be written
  holdfast enable                              a service, and every client found here
  holdfast enable --client claude-code --client codex
  holdfast enable --client none                the service alone, for plugins of your clients
  holdfast enable --name work --port 8643
"""


@click.command("enable", epilog=EXAMPLES)
@click.option(
    "--client",
    "clients",
    multiple=True,
    type=click.Choice([*CLIENT_PROGRAMS, NO_CLIENT]),
    help="A client to point at the proxy; may be repeated. With none no client is: its plugin asks the proxy. "
    "[default: those that are installed]",
)
@click.option("--name", default=DEFAULT_NAME, metavar="INSTANCE", help="A name for this proxy. [default: default]")
@click.option("--port", type=IntegerParamType(1, MAX_PORT), default=DEFAULT_PORT, help="Its port. [default: 8642]")
@click.option(
    "--service/--no-service",
    default=True,
    help="With --no-service write no service; you start holdfast serve yourself. [default: --service]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be written, and write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; required without a terminal.")
@store_option
@make_json_option("what was written, or would be")
def enable_command(
    clients: tuple[str, ...],
    name: str,
    port: int,
    store: str | None,
    *,
    service: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Keep a proxy running as a service, and point your clients at it.

    A user service (systemd on Linux, launchd on macOS) runs holdfast serve now and after each login. Clients are
    pointed at it in their own settings, or in the profile of your shell if they read a variable. Every change is shown
    before it is made. holdfast disable undoes it exactly; holdfast status shows what runs.
    """
    check_instance_name(name)
    get_home_folder(os.environ)
    manager = _choose_manager(is_wanted=service)
    instances = load_instances()
    _check_instance_is_new(name, port, instances)
    chosen = _choose_clients(clients, instances)
    environment = _drop_instance_addresses(os.environ, [record.url for record in instances])
    store_url = locate_store(store).url
    check_store_url(store_url)
    record, plan = _plan_instance(name, port, store_url, chosen, manager, environment)
    _check_port(record)
    if why := _explain_impossible_writes(record, plan):
        raise CommandError(f"nothing was written: {why}")
    if not as_json:
        _print_plan(record, plan)
    if dry_run:
        _report_instance(record, plan, is_written=False, as_json=as_json)
        return
    if manager != "none" and (why := effects.check_service_manager(manager)):
        raise CommandError(
            f"nothing was written: {why}; give --no-service and start it yourself: {_make_serve_line(record)}"
        )
    if not yes:
        if as_json or sys.stdin is None or not sys.stdin.isatty():
            raise CommandError("nothing was written: without a terminal, give --yes to write these files")
        if not click.confirm("Write this?"):
            click.echo("nothing was written")
            return
    _apply_plan(record, plan)
    _report_instance(record, plan, is_written=True, as_json=as_json)


# -- planning ----------------------------------------------------------------------------------------------------------


def _choose_manager(*, is_wanted: bool) -> str:
    """Return the service manager of this platform. Raises ``CommandError`` if there is none that is known."""
    if not is_wanted:
        return "none"
    manager = SERVICE_MANAGERS.get(sys.platform)
    if manager is None:
        raise CommandError(
            f"no service manager is known for {sys.platform}; give --no-service and start holdfast serve yourself"
        )
    return manager


def _check_instance_is_new(name: str, port: int, instances: Sequence[InstanceRecord]) -> None:
    """Raise ``CommandError`` if an instance of that name or on that port exists."""
    for record in instances:
        if record.name == name:
            raise CommandError(
                f"instance {name} exists already, on port {record.port}; holdfast disable --name {name} removes it, "
                "or give another --name and --port"
            )
        if record.port == port:
            raise CommandError(f"port {port} belongs to instance {record.name}; give another --port")


def _choose_clients(clients: Sequence[str], instances: Sequence[InstanceRecord]) -> tuple[str, ...]:
    """Return the clients to point at the proxy: those that were named, else those found here that no instance has.

    Raises ``CommandError`` for a named one that another instance has: its requests would pass through both proxies.
    """
    if NO_CLIENT in clients:
        if len(set(clients)) > 1:
            raise click.UsageError("--client none stands alone; leave it out, or leave out the others")
        return ()
    owners = {client: record.name for record in instances for client in record.clients}
    for client in clients:
        if client in owners:
            raise CommandError(
                f"{client} is pointed at instance {owners[client]}; holdfast disable --name {owners[client]} first, or "
                "leave it out"
            )
    if clients:
        return tuple(dict.fromkeys(clients))
    return tuple(client for client in effects.find_programs(CLIENT_PROGRAMS) if client not in owners)


def _drop_instance_addresses(environment: Mapping[str, str], urls: Collection[str]) -> dict[str, str]:
    """Return variables without those that point at instances, as the profile of this shell may have set them."""
    kept = {}
    for name, value in environment.items():
        if not any(value == url or value.startswith(f"{url}/") for url in urls):
            kept[name] = value
    return kept


def _plan_instance(
    name: str, port: int, store_url: str, clients: tuple[str, ...], manager: str, environment: Mapping[str, str]
) -> tuple[InstanceRecord, EnablePlan]:
    """Read the files of the clients, and plan the instance."""
    home = environment["HOME"]
    data_folder = find_instances_folder()
    record_path, log = locate_instance_files(data_folder, name)
    # The service starts in the home folder, so a path must not depend on the working folder.
    store_path = find_store_file(store_url)
    full_store_url = store_url if store_path is None else str(store_path.absolute())
    if has_password(store_url):
        # It would stand in the service's file and command line, where others can read it.
        raise CommandError("--store has a password; leave it out, and write it to ~/.pgpass, which only you can read")
    command = (sys.executable, "-m", "holdfast", "serve", "--host", "127.0.0.1", "--port", str(port))
    description = ServiceDescription(name, (*command, "--store", full_store_url), home, log)
    configuration = load_configuration(project=Path(home))
    request = PointingRequest(
        name,
        f"http://127.0.0.1:{port}",
        clients,
        # The service belongs to no folder, so the settings of the working folder do not count.
        ClientEnvironment(environment, home, os.sep),
        system=sys.platform,
        explicit_upstreams=frozenset(configuration.proxy.keys() & PROVIDERS.keys()),
        is_chatgpt="codex" in clients and _is_codex_with_chatgpt(),
    )
    paths = list_pointing_files(request)
    if manager != "none":
        paths = (locate_service_file(manager, description, home, os.environ), *paths)
    file_bytes = effects.read_existing_files(paths)
    request = replace(
        request,
        file_bytes=file_bytes,
        environment=replace(request.environment, file_texts=_decode_texts(file_bytes)),
    )
    plan = plan_enable(request, manager, description)
    plan = replace(plan, notes=(*plan.notes, *_list_general_notes(configuration, clients)))
    written_paths = [change.path for change in plan.changes]
    if manager == "systemd":
        written_paths.append(effects.get_systemd_link(written_paths[0]))
    record = InstanceRecord(
        name,
        port,
        request.proxy,
        full_store_url,
        manager,
        log,
        clients,
        description,
        record_changes(plan.changes),
        effects.list_missing_folders([*written_paths, record_path]),
    )
    return record, plan


def _is_codex_with_chatgpt() -> bool:
    import shutil

    from holdfast.cli.clients.temporary_files import is_chatgpt_login

    program = shutil.which("codex")
    return program is not None and is_chatgpt_login(program, os.environ)


def _decode_texts(file_bytes: Mapping[str, bytes]) -> dict[str, str]:
    """Return the texts of files; one that is not UTF-8 is left to the part that changes it."""
    texts = {}
    for path, data in file_bytes.items():
        texts[path] = data.decode("utf-8-sig", "replace")
    return texts


def _list_general_notes(configuration: Configuration, clients: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if not clients:
        notes.append(
            "no client is pointed at it: name one with --client, set its address by hand, or install its plugin"
        )
    if configuration.proxy.get("token"):
        notes.append("holdfast.toml sets a token, so every client must send it in the header x-holdfast-token")
    return tuple(notes)


def _check_port(record: InstanceRecord) -> None:
    """Raise ``CommandError`` if something else listens on the port; a proxy that the user started may."""
    if record.manager != "none" and not effects.is_port_free(record.port):
        raise CommandError(
            f"port {record.port} is in use, perhaps by a holdfast serve; stop that, or give another --port"
        )


def _explain_impossible_writes(record: InstanceRecord, plan: EnablePlan) -> str:
    record_path, _ = locate_instance_files(find_instances_folder(), record.name)
    path = effects.find_unwritable_path([record_path, *[change.path for change in plan.changes]])
    return f"{path} cannot be written; give yourself access to it, or leave out its client" if path else ""


# -- writing -----------------------------------------------------------------------------------------------------------


def _apply_plan(record: InstanceRecord, plan: EnablePlan) -> None:
    """Write everything, or leave everything as it was. Raises ``CommandError``."""
    record_path, log = locate_instance_files(find_instances_folder(), record.name)
    written: list[tuple[str, bytes | None]] = []
    is_started = False
    try:
        # The record first: if this process is killed, holdfast disable can undo what it had written.
        written.append((record_path, None))
        effects.write_file(record_path, encode_record(record))
        for change in plan.service_changes:
            written.append((change.path, change.before))
            effects.write_file(change.path, change.after)
            is_started = True
            _start_and_check(record, change.path)
        for change in plan.client_changes:
            _check_unchanged(change)
            written.append((change.path, change.before))
            effects.write_file(change.path, change.after)
    except (OSError, CommandError, KeyboardInterrupt) as error:
        if is_started:
            effects.stop_service(record.manager, record.service)
        for path, before in reversed(written):
            effects.write_file(path, before)
        if is_started:
            effects.forget_service(record.manager, plan.service_changes[0].path)
        effects.write_file(log, None)
        effects.remove_empty_folders(record.created_folders)
        if isinstance(error, OSError):
            raise CommandError(f"everything was put back: {describe_error(error)}") from error
        raise


def _check_unchanged(change: FileChange) -> None:
    """Raise ``CommandError`` if a file is no longer as it was shown; a running client writes its settings, too."""
    if effects.read_existing_files([change.path]).get(change.path) != change.before:
        raise CommandError(f"everything was put back, because {change.path} was changed meanwhile; try again")


def _start_and_check(record: InstanceRecord, path: str) -> None:
    """Start the service. Raises ``CommandError`` if it does not answer."""
    why = effects.start_service(record.manager, record.service, path)
    if not why:
        answer = effects.wait_for_proxy(record.url)
        if answer.proxy:
            return
        why = effects.read_log_end(record.log) or answer.text
    raise CommandError(
        f"everything was put back, because the service did not start: {clean_single_line(why)}; "
        f"try {_make_serve_line(record)}"
    )


# -- output ------------------------------------------------------------------------------------------------------------


def _make_serve_line(record: InstanceRecord) -> str:
    from shlex import quote

    return f"holdfast serve --port {record.port} --store {quote(record.store)}"


def _print_plan(record: InstanceRecord, plan: EnablePlan) -> None:
    for change in plan.changes:
        for line in render_diff(change.path, change.before, change.after):
            click.echo(clean_diff_line(line))
        click.echo()
    if plan.service_changes:
        click.echo(f"{record.manager} will run this now and at each login, and its output goes to {record.log}")
    for note in plan.notes:
        click.echo(f"holdfast: {clean_single_line(note)}", err=True)


def clean_diff_line(line: str) -> str:
    """Return a line of a diff with its blanks, and without characters that could steer the terminal."""
    return "".join(character if character.isprintable() else "\ufffd" for character in line.expandtabs(4))


def _report_instance(record: InstanceRecord, plan: EnablePlan, *, is_written: bool, as_json: bool) -> None:
    if as_json:
        print_json(_encode_instance(record, plan, is_written=is_written))
        return
    files = format_count(len(plan.changes), "file")
    if not is_written:
        click.echo(f"{files} would be written; nothing was")
        return
    click.echo(f"{files} written; instance {record.name} at {record.url}")
    if record.manager == "none":
        click.echo(f"start the proxy with: {_make_serve_line(record)}")
    if any(Path(change.path).name.startswith((".zshrc", ".bash", ".profile")) for change in plan.client_changes):
        click.echo("open a new terminal for the variables of the profile")
    suffix = "" if record.name == DEFAULT_NAME else f" --name {record.name}"
    click.echo(f"holdfast status shows it; holdfast disable{suffix} undoes it")


def _encode_instance(record: InstanceRecord, plan: EnablePlan, *, is_written: bool) -> dict[str, Any]:
    changes = []
    for change in plan.changes:
        diff = "\n".join(render_diff(change.path, change.before, change.after))
        changes.append({"path": change.path, "existed": change.before is not None, "diff": diff})
    return {
        "name": record.name,
        "url": record.url,
        "port": record.port,
        "store": record.store,
        "service": record.manager,
        "log": record.log,
        "clients": list(record.clients),
        "changes": changes,
        "notes": list(plan.notes),
        "written": is_written,
    }
