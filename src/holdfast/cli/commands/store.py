"""``holdfast store``: the tables of a store on a database server."""

from __future__ import annotations

import click

from holdfast.cli.files.user_paths import store_option
from holdfast.cli.output.errors import CommandError
from holdfast.cli.output.terminal import make_json_option, print_json
from holdfast.store.location import locate_store
from holdfast.store.open_store import is_database_url

EXAMPLES = """\
Examples:

\b
  holdfast store migrate --store postgresql://me@db.example.com/agents
"""


@click.group("store")
def store_command() -> None:
    """Look after a store on a database server."""


@store_command.command("migrate", epilog=EXAMPLES)
@store_option
@make_json_option("the old and the new version")
def migrate_command(store: str | None, *, as_json: bool) -> None:
    """Bring the tables of a store on PostgreSQL to this version.

    Others go on reading and writing meanwhile, also programs of the version before. It makes the partitions of this
    month and the next too, so run it each month if the role of the service may not. A file is brought up to date by
    the first write to it.
    """
    place = locate_store(store)
    if not is_database_url(place.url):
        raise CommandError(f"{place.name} is a file, which the first write brings up to date; nothing to do")
    # Loads the database driver.
    from holdfast.store.postgres.store import migrate_store

    old_version, new_version = migrate_store(place.url)
    if as_json:
        print_json({"store": place.name, "from": old_version, "to": new_version})
    elif old_version == new_version:
        click.echo(f"{place.name} has schema {new_version}, which is the newest")
    else:
        click.echo(f"{place.name}: schema {old_version} → {new_version}")
