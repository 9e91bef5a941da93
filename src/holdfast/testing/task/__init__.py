"""A long task on real files, and a scripted model that does it with only the facts that requests show it."""

from __future__ import annotations
