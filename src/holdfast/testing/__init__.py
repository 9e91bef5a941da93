"""For tests of your own: fakes that ship with the package. Import the module you need."""

from __future__ import annotations
