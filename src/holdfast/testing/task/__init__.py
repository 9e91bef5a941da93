"""One long task on real files, and a model that does it: what it needs to know it takes from what it is shown."""

from __future__ import annotations
