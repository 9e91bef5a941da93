"""The policies by name. Adding one takes a module with a ``Preset`` and a row here."""

from __future__ import annotations

from holdfast.planning.presets.baselines import APPEND_ONLY, SLIDING
from holdfast.planning.presets.claude_code import CLAUDE_CODE
from holdfast.planning.presets.openclaw.preset import OPENCLAW
from holdfast.planning.presets.opencode import OPENCODE
from holdfast.planning.presets.pi import PI
from holdfast.planning.presets.preset import Preset

PRESETS: dict[str, Preset] = {
    "append-only": APPEND_ONLY,
    "sliding": SLIDING,
    "opencode": OPENCODE,
    "pi": PI,
    "claude-code": CLAUDE_CODE,
    "openclaw": OPENCLAW,
    "holdfast": Preset("our own: prunes when the cache is lost anyway, and summarizes from the log without a model"),
}
