"""``holdfast status``: the proxies that ``holdfast enable`` keeps running."""

from __future__ import annotations

from typing import Any

import click

from holdfast.cli.always_on import effects
from holdfast.cli.always_on.instance import InstanceRecord, find_pointing_files
from holdfast.cli.always_on.user_instances import load_instances
from holdfast.cli.clients.client_check import probe_url
from holdfast.cli.output.terminal import make_console, make_json_option, print_json, print_wrapped
from holdfast.messages.text.single_line import clean_single_line

EXAMPLES = """\
\b
Examples:
  holdfast status
  holdfast status --json
"""


@click.command("status", epilog=EXAMPLES)
@make_json_option("the instances")
def status_command(*, as_json: bool) -> None:
    """Show the proxies of holdfast enable.

    For each: whether it runs and since when, its clients, the files that point at it, its store and its log.
    """
    statuses = [_inspect_instance(record) for record in load_instances()]
    if as_json:
        print_json(statuses)
        return
    if not statuses:
        click.echo("no proxy is enabled; holdfast enable --dry-run shows what it would do")
    for status in statuses:
        _print_status(status)


def _inspect_instance(record: InstanceRecord) -> dict[str, Any]:
    answer = probe_url(record.url, online=False)
    client_changes = record.changes if record.manager == "none" else record.changes[1:]
    current = effects.read_existing_files(applied.path for applied in client_changes)
    state = "none"
    if record.manager != "none":
        state = effects.describe_service_state(record.manager, record.service)
    pointing = find_pointing_files(client_changes, record.url, current)
    return {
        "name": record.name,
        "url": record.url,
        "port": record.port,
        "running": bool(answer.proxy),
        "since": answer.since or None,
        "answer": answer.text,
        "service": record.manager,
        "service_state": state,
        "clients": list(record.clients),
        "pointing_files": pointing,
        "changed_files": [applied.path for applied in client_changes if applied.path not in pointing],
        "store": record.store,
        "log": record.log,
    }


def _print_status(status: dict[str, Any]) -> None:
    from rich.text import Text

    console = make_console()
    running = "running" if status["running"] else "not running"
    line = Text.assemble(
        (status["name"], "bold"),
        f"  {status['url']}  ",
        (running, "green" if status["running"] else "red"),
    )
    if status["since"]:
        line.append(f" since {clean_single_line(status['since'])}")
    print_wrapped(console, line)
    service = "started by you" if status["service"] == "none" else f"{status['service']}, {status['service_state']}"
    lines = [f"service: {service}"]
    if not status["running"]:
        lines.append(f"answer: {status['answer']}")
    lines.append(f"clients: {', '.join(status['clients']) or 'none'}")
    lines += [f"pointed here by: {path}" for path in status["pointing_files"]]
    lines += [f"no longer pointed here by: {path}" for path in status["changed_files"]]
    lines.append(f"store: {status['store']}")
    if status["service"] != "none":
        lines.append(f"log: {effects.describe_log(status['log'])}")
    for text in lines:
        print_wrapped(console, Text(f"  {clean_single_line(text)}"))
