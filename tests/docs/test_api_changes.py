"""The page about changes of the APIs names rules that exist, and says in every row what is done."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.providers.dialects.registry import PROVIDER_SPECS
from holdfast.providers.registry import API_SPECS
from holdfast.providers.rules.validate import ALL_RULES

PAGE = Path(__file__).parents[2] / "docs" / "api-changes.md"
PERIODS = (
    "before 2026", "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
STATES = ("done", "partly", "not done", "nothing")
TABLE_HEAD = "| month | what changed | what Holdfast does | source |"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="these tests also run beside an installed wheel")


def list_named_rules(page: str) -> list[str]:
    """Return the names of rules in a page: spans that begin with an API or a provider and a dot."""
    owners = "|".join(map(re.escape, (*API_SPECS, *PROVIDER_SPECS)))
    return re.findall(rf"`((?:{owners})\.[\w-]+)`", page)


def list_existing_rules() -> set[str]:
    """Return the names of all rules, of the APIs and of the providers."""
    names = {rule.name for rule in ALL_RULES}
    for spec in PROVIDER_SPECS.values():
        for build_rules in spec.rules_by_api.values():
            for model in spec.example_models:
                names |= {f"{spec.name}.{requirement.rule}" for requirement in build_rules(model.lower()).requirements}
    return names


def list_tables(page: str) -> list[list[list[str]]]:
    """Return the tables of changes: for each its rows, for each row its cells."""
    tables = []
    for part in page.split(TABLE_HEAD + "\n")[1:]:
        lines = part.split("\n\n")[0].splitlines()
        tables.append([[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]])
    return tables


def test_each_named_rule_exists():
    """Each rule on the page is one of an API or of a provider."""
    named_rules = list_named_rules(PAGE.read_text("utf-8"))
    assert len(named_rules) > 50  # the pattern finds them
    assert sorted(set(named_rules) - list_existing_rules()) == []


def test_each_row_has_month_state_and_source():
    """A row has a month, in order, begins its third cell with a word of the legend, and names a source."""
    tables = list_tables(PAGE.read_text("utf-8"))
    assert len(tables) == 5
    for rows in tables:
        for row in rows:
            period, change, action, source = row
            state = re.match(r"\*\*([a-z ]+)\*\*:? ?", action)
            assert period in PERIODS, row
            assert state is not None, row
            assert state[1] in STATES, row
            assert all((change, action[state.end() :], source)), row
        months = [PERIODS.index(row[0]) for row in rows]
        assert all(earlier <= later for earlier, later in pairwise(months))
