"""Aliases and protocols, one docstring under each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Counter: TypeAlias = Callable[[str], int]
"""Tokens of a text, as some tokenizer or estimator counts them."""
