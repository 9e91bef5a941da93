"""Holdfast keeps long agent conversations inside the model's context window."""

from __future__ import annotations
