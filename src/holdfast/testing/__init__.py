"""For tests: fakes and conformance suites that ship with the package. Import the module you need."""

from __future__ import annotations
