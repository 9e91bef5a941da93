"""Servers that speak somebody else's API: what each of them refuses, in its words, and how its answers differ.

These rows are written from public documentation and public refusals alone. They share nothing with
``holdfast.providers.dialects``, so that each can be tested against the other.
"""

from __future__ import annotations
