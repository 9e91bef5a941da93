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


def row(client: Client, scenario: Scenario, verdict: Verdict, *, is_held: bool) -> str:
    """Return one line of the table."""
    numbers = (verdict.turns, verdict.past, verdict.errors, verdict.lost, verdict.refused, verdict.compactions)
    why = "; ".join(filter(None, (verdict.first_error, *verdict.wrong[:3])))
    cells = (client.name, scenario.name, "with" if is_held else "without", *numbers, _clean(why))
    return _line(cells)


def _clean(text: str) -> str:
    return " ".join(text.split()).replace("|", "/")[:240]


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _chosen(values: Sequence, names: Sequence[str]) -> list:
    return [value for value in values if not names or value.name in names]


def _folder(kept: Path | None) -> AbstractContextManager[str]:
    """Return the folder of one run; it is gone afterwards unless runs are kept."""
    return nullcontext(mkdtemp(prefix="clients-", dir=kept)) if kept else TemporaryDirectory(prefix="clients-")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Print the table, a line a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("installed", type=Path)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--client", action="append", default=[])
    parser.add_argument("--scenario", action="append", default=[])
    parser.add_argument("--without", action="store_true")
    parser.add_argument("--with", dest="held", action="store_true")
    parser.add_argument("--keep", type=Path, help="folder in which each run is kept")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what was started is ended
    _say(_line(HEADS))
    _say(_line("---" for _ in HEADS))
    sides = [False] * given.without + [True] * given.held or [False, True]
    scenarios = _chosen(SCENARIOS, given.scenario)
    for client in _chosen(CLIENTS, given.client):
        for scenario in scenarios:
            for is_held in sides:
                with _folder(given.keep) as folder:
                    run = converse(client, scenario, Path(folder), given.installed, given.turns, is_held=is_held)
                    _say(row(client, scenario, judge(run), is_held=is_held))
    _say("\n" + "\n".join(f"- {scenario.name}: {scenario.description}" for scenario in scenarios))


if __name__ == "__main__":
    main()
