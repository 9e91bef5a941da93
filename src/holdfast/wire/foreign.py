"""A message that came over one API, made ready for another; hygiene looks at such messages in the same way."""

from __future__ import annotations

from holdfast.view.foreign import native

__all__ = ["native"]
