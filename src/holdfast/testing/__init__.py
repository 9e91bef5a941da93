"""Fakes for users' own tests: a strict provider, upstreams without sockets, a fake clock. Import modules by name."""

from __future__ import annotations
