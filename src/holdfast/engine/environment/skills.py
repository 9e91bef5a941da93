"""Skills: folders with a ``SKILL.md`` that says, in its front matter, what it is for; its body is read when
used.

Which of them are in use a conversation tells, so that they stand behind a summary again.

Of YAML the front matter has fields of one line and indented blocks, all read as text. A YAML parser refuses what people
write there ("description: Use when: the tide turns") and makes False of a skill called "no".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from msgspec import Struct

from holdfast.engine.environment.folder import read_file_beginning, resolve_path_inside
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.parts import Text
from holdfast.messages.references import decode_call_arguments
from holdfast.messages.text.text_cuts import flatten_to_line
from holdfast.planning.extract.ledger import PATH_KEYS

SKILL_FILENAME = "SKILL.md"
SKILL_SCHEME = "skill:"
"""What the path of a skill's file begins with where it is read by its name."""
SKILL_FOLDERS = (".agents/skills", ".claude/skills")
"""Where a project keeps its skills; the second is Claude Code's."""
MAX_SKILL_NAME_CHARS, MAX_SKILL_DESCRIPTION_CHARS = 64, 1_024
"""Characters of a skill's name and of what it says it is for, as the open format of skills limits them."""
MAX_LISTED_SKILLS = 100
"""[H] Skills that a system prompt lists; each costs some fifty tokens of every request."""
MAX_SKILL_BYTES = 262_144
"""[H] Bytes of a ``SKILL.md``; the format advises five hundred lines."""
_NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_SKILL_NAME_CHARS - 1}}}")
_FIELD_PATTERN = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?[ \t]*$")
_BLOCK_PATTERN = re.compile(r"[|>][+-]?")
_USED_SKILL_PATTERN = re.compile(r"Skill ([\w.-]+), in use:\n")
"""How the text begins that ``format_used_skill`` makes."""


class Skill(Struct, frozen=True):
    """A skill that was found; ``path`` is its ``SKILL.md``."""

    name: str
    description: str
    path: str

    def read_body(self) -> str:
        """Return what it says now, without its front matter. Raises ``FormatError`` and ``OSError``."""
        path = Path(self.path)
        text, omitted_bytes = read_file_beginning(path.parent, path.name, MAX_SKILL_BYTES)
        cut_notice = f"\n[{omitted_bytes:,} bytes are left out here]" if omitted_bytes else ""
        return parse_front_matter(text)[1].strip() + cut_notice


def find_skills(roots: Sequence[Path], extra_folders: Sequence[Path]) -> tuple[tuple[Skill, ...], list[str]]:
    """Return the skills of ``roots``, the nearest last, and of the folders ``extra_folders``, and what could not be
    read.

    Of two with one name the later one counts; what lies behind a link that leads out of its root is not read.
    """
    skills: dict[str, Skill] = {}
    notices: list[str] = []
    for root, path in _iter_skill_folders(roots, extra_folders, notices):
        try:
            skill = _load_skill(root, path)
        except (FormatError, OSError) as error:
            notices.append(f"the skill in {path} is left out: {error}")
            continue
        skills.pop(skill.name, None)
        skills[skill.name] = skill
    all_skills = tuple(skills.values())
    if len(all_skills) > MAX_LISTED_SKILLS:
        notices.append(
            f"{len(all_skills)} skills were found and the nearest {MAX_LISTED_SKILLS} are listed; remove some"
        )
    return all_skills[-MAX_LISTED_SKILLS:], notices


def _iter_skill_folders(
    roots: Sequence[Path], extra_folders: Sequence[Path], notices: list[str]
) -> Iterator[tuple[Path, Path]]:
    """Yield each folder that holds a skill, with the root that it must not leave."""
    for root, folder in [
        *((root, root / name) for root in roots for name in SKILL_FOLDERS),
        *((extra_folder, extra_folder) for extra_folder in extra_folders),
    ]:
        try:
            inside = sorted(resolve_path_inside(root, folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (FormatError, OSError) as error:
            notices.append(f"the skills in {folder} are left out: {error}")
            continue
        yield from ((root, path) for path in inside if _has_skill(path))


def _has_skill(path: Path) -> bool:
    try:
        (path / SKILL_FILENAME).lstat()
    except (OSError, ValueError):
        return False
    return True


def _load_skill(root: Path, folder: Path) -> Skill:
    path = resolve_path_inside(root, folder / SKILL_FILENAME)
    fields, body = parse_front_matter(read_file_beginning(root, path, MAX_SKILL_BYTES)[0])
    name = fields.get("name") or folder.name
    if not _NAME_PATTERN.fullmatch(name):
        raise FormatError(
            f"its name {flatten_to_line(name, MAX_SKILL_NAME_CHARS)!r} is none; use letters, digits, -, _ and ."
        )
    about = fields.get("description") or next((line for line in body.splitlines() if line.strip(" #")), "")
    if not about.strip():
        raise FormatError("it says nothing; write a description into its front matter")
    return Skill(name, flatten_to_line(about.strip(" #"), MAX_SKILL_DESCRIPTION_CHARS), str(path))


# -- front matter ------------------------------------------------------------------------------------------------------


def parse_front_matter(text: str) -> tuple[Mapping[str, str], str]:
    """Return the fields between the lines ``---`` that ``text`` begins with, and what stands behind them.

    A field is ``name: value``, quoted or not, or a block of lines set in below it; other YAML is read as text.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() in ("---", "...")), 0)
    if not end:
        return {}, text
    return _parse_fields(lines[1:end]), "\n".join(lines[end + 1 :])


def _parse_fields(lines: Sequence[str]) -> dict[str, str]:
    values: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _FIELD_PATTERN.match(line)
        if match is not None:
            name = match[1].lower()
            first = (match[2] or "").strip()
            values[name] = [] if _BLOCK_PATTERN.fullmatch(first) else [first]
        elif name and line.startswith((" ", "\t")):
            values[name].append(line.strip())
    return {key: _strip_quotes(" ".join(filter(None, pieces))) for key, pieces in values.items()}


def _strip_quotes(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


# -- which are in use --------------------------------------------------------------------------------------------------


def format_used_skill(name: str, text: str) -> str:
    """Return what stands behind a summary for the skill called ``name``, which says ``text``."""
    return f"Skill {name}, in use:\n\n{text}"


def find_used_skills(messages: Iterable[Message], skills: Mapping[str, str]) -> tuple[str, ...]:
    """Return the skills that ``messages`` used, the last one first; ``skills`` are the files of those there are.

    What an earlier summary brought back counts as used.
    """
    used: dict[str, None] = {}
    for message in messages:
        for name in (*_find_restored_skills(message, skills), *_find_skills_in_calls(message, skills)):
            used.pop(name, None)
            used[name] = None
    return tuple(reversed(used))


def _find_restored_skills(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that a summary has in it, in the order of their use: there the last one stands first."""
    for part in reversed(message.parts):
        if isinstance(part, Text):
            yield from (name for name in reversed(_USED_SKILL_PATTERN.findall(part.text)) if name in skills)


def _find_skills_in_calls(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that the calls of a message use."""
    for call in message.calls:
        values = decode_call_arguments(call)
        if isinstance(values, dict):
            is_name = call.name.lower() == "skill"
            for key in ("skill", "name") if is_name else PATH_KEYS:
                value = values.get(key)
                if isinstance(value, str):
                    yield from _match_skill(value, skills, is_name=is_name)


def _match_skill(reference: str, skills: Mapping[str, str], *, is_name: bool) -> Iterator[str]:
    """Yield the skill that ``reference`` is: its name, or the path of its file."""
    if is_name or reference.startswith(SKILL_SCHEME):
        name = reference.removeprefix(SKILL_SCHEME).partition("/")[0]
        yield from (name,) if name in skills else ()
        return
    path = PurePosixPath(reference).parts
    for name, file in skills.items():
        if len(path) > 1 and PurePosixPath(file).parts[-len(path) :] == path:
            yield name
