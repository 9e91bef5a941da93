"""Skills: folders with a ``SKILL.md`` that says, in its front matter, what it is for; its body is read when used.

Which of them are in use a conversation tells, so that they stand behind a summary again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.engine.environment.folder import beginning, within
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.references import arguments
from holdfast.messages.text.cutting import one_line
from holdfast.planning.extract.ledger import PATH_KEYS

SKILL = "SKILL.md"
SCHEME = "skill:"
"""What the path of a skill's file begins with where it is read by its name."""
FOLDERS = (".agents/skills", ".claude/skills")
"""Where a project keeps its skills; the second is Claude Code's."""
NAME_CHARS, ABOUT_CHARS = 64, 1_024
"""Characters of a skill's name and of what it says it is for, as the open format of skills limits them."""
MOST = 100
"""[H] Skills that a system prompt lists; each costs some fifty tokens of every request."""
BODY_BYTES = 262_144
"""[H] Bytes of a ``SKILL.md``; the format advises five hundred lines."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARS - 1}}}")
_FIELD = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?[ \t]*$")
_BLOCK = re.compile(r"[|>][+-]?")
_IN_USE = re.compile(r"Skill ([\w.-]+), in use:\n")
"""How the text begins that ``in_use`` makes."""


class Skill(Struct, frozen=True):
    """A skill that was found; ``path`` is its ``SKILL.md``."""

    name: str
    description: str
    path: str

    def body(self) -> str:
        """Return what it says now, without its front matter. Raises ``FormatError`` and ``OSError``."""
        path = Path(self.path)
        text, left = beginning(path.parent, path.name, BODY_BYTES)
        cut = f"\n[{left:,} bytes are left out here]" if left else ""
        return front_matter(text)[1].strip() + cut


def found_skills(roots: Sequence[Path], more: Sequence[Path]) -> tuple[tuple[Skill, ...], list[str]]:
    """Return the skills of ``roots``, the nearest last, and of the folders ``more``, and what could not be read.

    Of two with one name the later one counts; what lies behind a link that leads out of its root is not read.
    """
    found: dict[str, Skill] = {}
    notices: list[str] = []
    for root, path in _places(roots, more, notices):
        try:
            skill = _skill(root, path)
        except (FormatError, OSError) as error:
            notices.append(f"the skill in {path} is left out: {error}")
            continue
        found.pop(skill.name, None)
        found[skill.name] = skill
    listed = tuple(found.values())
    if len(listed) > MOST:
        notices.append(f"{len(listed)} skills were found and the nearest {MOST} are listed; remove some")
    return listed[-MOST:], notices


def _places(roots: Sequence[Path], more: Sequence[Path], notices: list[str]) -> Iterator[tuple[Path, Path]]:
    """Yield each folder that holds a skill, with the root that it must not leave."""
    for root, folder in [*((root, root / name) for root in roots for name in FOLDERS), *((one, one) for one in more)]:
        try:
            inside = sorted(within(root, folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (FormatError, OSError) as error:
            notices.append(f"the skills in {folder} are left out: {error}")
            continue
        yield from ((root, path) for path in inside if _has_skill(path))


def _has_skill(path: Path) -> bool:
    try:
        (path / SKILL).lstat()
    except (OSError, ValueError):
        return False
    return True


def _skill(root: Path, folder: Path) -> Skill:
    path = within(root, folder / SKILL)
    told, body = front_matter(beginning(root, path, BODY_BYTES)[0])
    name = told.get("name") or folder.name
    if not _NAME.fullmatch(name):
        raise FormatError(f"its name {one_line(name, NAME_CHARS)!r} is none; use letters, digits, -, _ and .")
    about = told.get("description") or next((line for line in body.splitlines() if line.strip(" #")), "")
    if not about.strip():
        raise FormatError("it says nothing; write a description into its front matter")
    return Skill(name, one_line(about.strip(" #"), ABOUT_CHARS), str(path))


# -- front matter ------------------------------------------------------------------------------------------------------


def front_matter(text: str) -> tuple[Mapping[str, str], str]:
    """Return the fields between the lines ``---`` that ``text`` begins with, and what stands behind them.

    A field is ``name: value``, quoted or not, or a block of lines set in below it; other YAML is read as text.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return {}, text
    return _fields(lines[1:end]), "\n".join(lines[end + 1 :])


def _fields(lines: Sequence[str]) -> dict[str, str]:
    told: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        found = _FIELD.match(line)
        if found is not None:
            name = found[1].lower()
            first = (found[2] or "").strip()
            told[name] = [] if _BLOCK.fullmatch(first) else [first]
        elif name and line.startswith((" ", "\t")):
            told[name].append(line.strip())
    return {key: _unquoted(" ".join(filter(None, pieces))) for key, pieces in told.items()}


def _unquoted(text: str) -> str:
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


# -- which are in use --------------------------------------------------------------------------------------------------


def in_use(name: str, text: str) -> str:
    """Return what stands behind a summary for the skill called ``name``, which says ``text``."""
    return f"Skill {name}, in use:\n\n{text}"


def used_skills(messages: Iterable[Message], skills: Mapping[str, str]) -> tuple[str, ...]:
    """Return the skills that ``messages`` used, the last one first; ``skills`` are the files of those there are.

    What an earlier summary brought back counts as used.
    """
    used: dict[str, None] = {}
    for message in messages:
        for name in (*_brought_back(message, skills), *_read(message, skills)):
            used.pop(name, None)
            used[name] = None
    return tuple(reversed(used))


def _brought_back(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that a summary has in it, in the order of their use: there the last one stands first."""
    for part in reversed(message.parts):
        if isinstance(part, Text):
            yield from (name for name in reversed(_IN_USE.findall(part.text)) if name in skills)


def _read(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that the calls of a message use."""
    for call in message.calls:
        values = arguments(call)
        if isinstance(values, dict):
            is_name = call.name.lower() == "skill"
            for key in ("skill", "name") if is_name else PATH_KEYS:
                named = values.get(key)
                if isinstance(named, str):
                    yield from _named(named, skills, is_name=is_name)


def _named(named: str, skills: Mapping[str, str], *, is_name: bool) -> Iterator[str]:
    """Yield the skill that ``named`` is: its name, or the path of its file."""
    if is_name or named.startswith(SCHEME):
        name = named.removeprefix(SCHEME).partition("/")[0]
        yield from (name,) if name in skills else ()
        return
    path = PurePosixPath(named).parts
    for name, file in skills.items():
        if len(path) > 1 and PurePosixPath(file).parts[-len(path) :] == path:
            yield name
