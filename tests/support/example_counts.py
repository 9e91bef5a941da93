"""How many examples the tests try.

``HOLDFAST_COUNTS`` chooses one of three levels: ``quick`` (the default) is run before each change and
takes minutes; ``ci`` tries more examples of the same kind; ``thorough`` is for a release and takes hours.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, get_args

import pytest

Level = Literal["quick", "ci", "thorough"]
T = TypeVar("T")


def read_level(value: str) -> Level:
    """Return the level that ``value`` names.

    An unknown name raises ``ValueError``, so that a misspelt level cannot make a run try less than it should.
    """
    if value not in get_args(Level):
        raise ValueError(f"HOLDFAST_COUNTS is {value!r}; set it to one of {', '.join(get_args(Level))}")
    return value  # type: ignore[return-value]


LEVEL: Level = read_level(os.environ.get("HOLDFAST_COUNTS", "quick"))
IS_THOROUGH = LEVEL == "thorough"


def choose(*, quick: T, ci: T, thorough: T) -> T:
    """Return the value for the level of this run."""
    return {"quick": quick, "ci": ci, "thorough": thorough}[LEVEL]


def mark_rest_long(values: Iterable[Any], *, keep: int) -> list[Any]:
    """Return ``values`` for ``parametrize``, all after the first ``keep`` marked ``long``."""
    return [value if at < keep else pytest.param(value, marks=pytest.mark.long) for at, value in enumerate(values)]


def mark_every_other_long(values: Iterable[Any]) -> list[Any]:
    """Return ``values`` for ``parametrize``, the second, the fourth and so on marked ``long``."""
    return [pytest.param(value, marks=pytest.mark.long) if at % 2 else value for at, value in enumerate(values)]
