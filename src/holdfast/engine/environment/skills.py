"""Skills: folders with a ``SKILL.md``, whose front matter says when to use it, and whose body is read when it is used.

The conversation itself tells which skills are in use, so that they can be shown again after a summary.

Front matter is read as a small subset of YAML: fields of one line, and indented blocks, all as text. A YAML parser
would refuse descriptions that people write ("description: Use when: the tide turns"), and read a skill called "no" as
False.
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
"""Prefix of a path that names a skill instead of a file."""
SKILL_FOLDERS = (".agents/skills", ".claude/skills")
"""Folders of a project that hold skills; the second is Claude Code's."""
MAX_SKILL_NAME_CHARS, MAX_SKILL_DESCRIPTION_CHARS = 64, 1_024
"""Characters of a skill's name and description, as the open format of skills limits them."""
# Each costs some fifty tokens of every request. Chosen by judgement.
MAX_LISTED_SKILLS = 100
"""Skills listed in a system prompt."""
# The format advises five hundred lines, a tenth of this; the rest would be cut again when it is shown. Chosen by
# judgement.
MAX_SKILL_BYTES = 262_144
"""Bytes of a ``SKILL.md`` that are read."""
_NAME_PATTERN = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{MAX_SKILL_NAME_CHARS - 1}}}")
_FIELD_PATTERN = re.compile(r"([A-Za-z][\w-]*)[ \t]*:(?:[ \t]+(.*))?[ \t]*$")
_BLOCK_PATTERN = re.compile(r"[|>][+-]?")
_USED_SKILL_PATTERN = re.compile(r"Skill ([\w.-]+), in use:\n")
"""Matches the beginning of a text from ``format_used_skill``."""


class Skill(Struct, frozen=True):
    """A skill; ``path`` is that of its ``SKILL.md``."""

    name: str
    description: str
    path: str

    def read_body(self) -> str:
        """Return the file's current text without its front matter. Raises ``FormatError`` and ``OSError``."""
        path = Path(self.path)
        text, omitted_bytes = read_file_beginning(path.parent, path.name, MAX_SKILL_BYTES)
        _, body = parse_front_matter(text)
        cut_notice = f"\n[{omitted_bytes:,} bytes are left out here]" if omitted_bytes else ""
        return body.strip() + cut_notice


def find_skills(roots: Sequence[Path], extra_folders: Sequence[Path]) -> tuple[tuple[Skill, ...], list[str]]:
    """Return the skills of the projects ``roots``, the nearest last, and of ``extra_folders``, and messages.

    Of two with one name the later one counts. A link that leads out of its root is not followed. The messages name the
    skills that could not be read, or were left out.
    """
    skills: dict[str, Skill] = {}
    notices: list[str] = []
    for root, path in _iter_skill_folders(roots, extra_folders, notices):
        try:
            skill = _load_skill(root, path)
        except (FormatError, OSError) as error:
            notices.append(f"the skill in {path} is left out: {error}")
            continue
        skills.pop(skill.name, None)  # so that it also takes the later place in the order
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
    """Yield each folder that holds a skill, with the root that it must not lead out of."""
    skill_folders = [(root, root / name) for root in roots for name in SKILL_FOLDERS]
    skill_folders += [(extra_folder, extra_folder) for extra_folder in extra_folders]
    for root, folder in skill_folders:
        try:
            paths = sorted(resolve_path_inside(root, folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (FormatError, OSError) as error:
            notices.append(f"the skills in {folder} are left out: {error}")
            continue
        for path in paths:
            if _has_skill(path):
                yield root, path


def _has_skill(path: Path) -> bool:
    try:
        (path / SKILL_FILENAME).lstat()
    except (OSError, ValueError):
        return False
    return True


def _load_skill(root: Path, folder: Path) -> Skill:
    """Read a skill's name and description; without front matter, the folder's name and the first line of the text."""
    path = resolve_path_inside(root, folder / SKILL_FILENAME)
    text, _ = read_file_beginning(root, path, MAX_SKILL_BYTES)
    fields, body = parse_front_matter(text)
    name = fields.get("name") or folder.name
    if not _NAME_PATTERN.fullmatch(name):
        raise FormatError(
            f"its name {flatten_to_line(name, MAX_SKILL_NAME_CHARS)!r} is not valid; use letters, digits, -, _ and ."
        )
    description = fields.get("description") or _find_first_line(body)
    if not description.strip():
        raise FormatError("it has no description; write one into its front matter")
    return Skill(name, flatten_to_line(description.strip(" #"), MAX_SKILL_DESCRIPTION_CHARS), str(path))


def _find_first_line(text: str) -> str:
    """Return the first line with more than spaces and heading marks, or ""."""
    for line in text.splitlines():
        if line.strip(" #"):
            return line
    return ""


# -- front matter ------------------------------------------------------------------------------------------------------


def parse_front_matter(text: str) -> tuple[Mapping[str, str], str]:
    """Return the fields of the front matter at the beginning of ``text``, between two lines ``---``, and the rest.

    A field is ``name: value``, quoted or not, or ``name:`` with an indented block below it. Other YAML is read as text.
    Without front matter there are no fields, and the text is returned as it is.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    if not lines or lines[0].rstrip() != "---":
        return {}, text
    for index, line in enumerate(lines[1:], 1):
        if line.rstrip() in ("---", "..."):
            return _parse_fields(lines[1:index]), "\n".join(lines[index + 1 :])
    return {}, text


def _parse_fields(lines: Sequence[str]) -> dict[str, str]:
    """Return the fields by lower-case name; lines that are neither a field nor part of one are ignored."""
    values: dict[str, list[str]] = {}
    name = ""
    for line in lines:
        match = _FIELD_PATTERN.match(line)
        if match is not None:
            name = match[1].lower()
            value = (match[2] or "").strip()
            is_block = _BLOCK_PATTERN.fullmatch(value) is not None
            values[name] = [] if is_block else [value]
        elif name and line.startswith((" ", "\t")):
            values[name].append(line.strip())
    fields: dict[str, str] = {}
    for key, pieces in values.items():
        fields[key] = _strip_quotes(" ".join([piece for piece in pieces if piece]))
    return fields


def _strip_quotes(text: str) -> str:
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


# -- skills in use -----------------------------------------------------------------------------------------------------


def format_used_skill(name: str, text: str) -> str:
    """Return the text that shows a skill in use again after a summary."""
    return f"Skill {name}, in use:\n\n{text}"


def find_used_skills(messages: Iterable[Message], skills: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the skills that ``messages`` used, the last used first.

    ``skills`` has the file of each known skill by its name. A skill shown again by an earlier summary counts as used.
    """
    used_names: dict[str, None] = {}
    for message in messages:
        for name in (*_find_restored_skills(message, skills), *_find_skills_in_calls(message, skills)):
            used_names.pop(name, None)
            used_names[name] = None
    return tuple(reversed(used_names))


def _find_restored_skills(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that a summary shows again, in the order of their use: a summary shows the last used first."""
    for part in reversed(message.parts):
        if not isinstance(part, Text):
            continue
        for name in reversed(_USED_SKILL_PATTERN.findall(part.text)):
            if name in skills:
                yield name


def _find_skills_in_calls(message: Message, skills: Mapping[str, str]) -> Iterator[str]:
    """Yield the skills that the calls of a message use: a tool ``skill``, or one that reads the skill's file."""
    for call in message.calls:
        arguments = decode_call_arguments(call)
        if not isinstance(arguments, dict):
            continue
        is_skill_tool = call.name.lower() == "skill"
        for key in ("skill", "name") if is_skill_tool else PATH_KEYS:
            value = arguments.get(key)
            if isinstance(value, str):
                yield from _match_skill(value, skills, is_name=is_skill_tool)


def _match_skill(reference: str, skills: Mapping[str, str], *, is_name: bool) -> Iterator[str]:
    """Yield the skills that ``reference`` names: by name, by ``skill:name``, or by the end of their file's path."""
    if is_name or reference.startswith(SKILL_SCHEME):
        name = reference.removeprefix(SKILL_SCHEME).partition("/")[0]
        if name in skills:
            yield name
        return
    path_parts = PurePosixPath(reference).parts
    if len(path_parts) < 2:
        return  # "SKILL.md" alone may be any of them
    for name, file in skills.items():
        if PurePosixPath(file).parts[-len(path_parts) :] == path_parts:
            yield name
