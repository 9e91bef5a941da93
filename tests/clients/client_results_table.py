"""What reached each client in each scenario, with and without Holdfast, as a Markdown table.

Usage: python tests/clients/client_results_table.py INSTALLED [--turns N] [--client NAME]… [--scenario NAME]…
       [--without | --with]
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

sys.path.insert(0, str(Path(__file__).parent))

from conversation_driver import CLIENTS, SCENARIOS, Client, Scenario, converse
from conversation_verdict import Verdict, judge

TURNS = 40
HEADS = (
    "client",
    "scenario",
    "Holdfast",
    "turns",
    "past the window",
    "errors",
    "words lost",
    "refused upstream",
    "compactions by the client",
    "first error",
)


def format_row(client: Client, scenario: Scenario, verdict: Verdict, *, is_with_holdfast: bool) -> str:
    """Return one row of the table."""
    numbers = (verdict.turns, verdict.past, verdict.errors, verdict.lost, verdict.refused, verdict.compactions)
    why = "; ".join(filter(None, (verdict.first_error, *verdict.wrong[:3])))
    cells = (client.name, scenario.name, "with" if is_with_holdfast else "without", *numbers, _clean_cell(why))
    return _format_line(cells)


def _clean_cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:240]


def _format_line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _select_by_name(values: Sequence, names: Sequence[str]) -> list:
    return [value for value in values if not names or value.name in names]


def _open_run_folder(parent_folder: Path | None) -> AbstractContextManager[str]:
    """Return the folder of one run, which is removed afterwards unless runs are kept."""
    return (
        nullcontext(mkdtemp(prefix="clients-", dir=parent_folder))
        if parent_folder
        else TemporaryDirectory(prefix="clients-")
    )


def _print_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print the table, one row a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients_folder", type=Path)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--client", action="append", default=[])
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--with", dest="with_holdfast", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder in which each run is kept")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the processes that were started
    _print_line(_format_line(HEADS))
    _print_line(_format_line("---" for _ in HEADS))
    sides = [False] * options.without + [True] * options.with_holdfast or [False, True]
    scenarios = _select_by_name(SCENARIOS, options.scenario)
    for client in _select_by_name(CLIENTS, options.client):
        for scenario in scenarios:
            for is_with_holdfast in sides:
                with _open_run_folder(options.keep) as folder:
                    run = converse(
                        client,
                        scenario,
                        Path(folder),
                        options.clients_folder,
                        options.turns,
                        is_with_holdfast=is_with_holdfast,
                    )
                    _print_line(format_row(client, scenario, judge(run), is_with_holdfast=is_with_holdfast))
    _print_line("\n" + "\n".join(f"- {scenario.name}: {scenario.description}" for scenario in scenarios))


if __name__ == "__main__":
    main()
