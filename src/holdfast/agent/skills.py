"""Skills as the agent uses them: the system prompt lists them, and ``read`` opens one by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.errors import FormatError
from holdfast.runtime.folder import within
from holdfast.runtime.skills import SKILL, Skill


def skill_file(skills: Sequence[Skill], named: str) -> Path:
    """Return the file that ``NAME`` or ``NAME/FILE`` is of a skill; ``FormatError`` for what is in none."""
    name, _, rest = named.partition("/")
    found = next((skill for skill in skills if skill.name == name), None)
    if found is None:
        known = ", ".join(skill.name for skill in skills) or "none"
        raise FormatError(f"no skill is called {name!r}; there are: {known}")
    return within(Path(found.path).parent, rest or SKILL)
