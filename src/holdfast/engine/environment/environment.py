"""What an agent works in: its system prompt, tools, skills and rules, made in one place.

A normal request and one that asks for a summary get the same ``fields``; what has to stand behind a summary again comes
from its source with ``restore_texts``. Only the folders that are given are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.environment.folder import read_file_beginning
from holdfast.engine.environment.skills import (
    SKILL_FILENAME,
    SKILL_SCHEME,
    Skill,
    find_skills,
    find_used_skills,
    format_used_skill,
)
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import estimate_text_tokens
from holdfast.messages.text.text_cuts import hash_text
from holdfast.messages.text.token_excerpts import clip_text_with_notice
from holdfast.planning.extract.restored_plan import render_restored_todos
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.portable_options import FunctionTool, PortableOptions
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.options import write_request_options
from holdfast.providers.requests.request_body import build_system_field

__all__ = ["Environment", "FunctionTool", "RulesFile", "Skill", "load_environment"]

RULES_FILENAME = "AGENTS.md"
"""The file with a folder's rules for agents."""
MAX_RULES_BYTES = 32_768
"""[H] Bytes of rules that all folders together may bring, the nearest first; Codex takes as many."""
AGENT_OUTPUT_TOKENS = 8_000
"""[H] Tokens of an answer that are asked for: a file of some hundred lines fits."""
RESTORED_SKILL_TOKENS = 5_000
"""[K] Tokens of a skill that stand behind a summary again."""
RESTORED_SKILLS_TOKENS = 25_000
"""[K] Tokens of all skills that stand there, the ones used last first."""
RESTORED_RULE_TOKENS = 5_000
"""[K] Tokens of rules that changed or came since the system prompt was made, and stand there for that."""
RESTORED_PLAN_TOKENS = 2_000
"""[H] Tokens of the plan that stand there: a list of some dozen items has a few hundred."""


class RulesFile(Struct, frozen=True):
    """What an ``AGENTS.md`` says, and where it lies."""

    path: str
    text: str
    digest: str = ""
    """Of all that was read of the file, shown or not."""


class Environment(Struct, frozen=True):
    """System prompt, tools, skills and rules of an agent."""

    system: str = ""
    """The words of whoever made the agent."""
    tools: tuple[FunctionTool, ...] = ()
    skills: tuple[Skill, ...] = ()
    rules: tuple[RulesFile, ...] = ()
    """The nearest last."""
    max_output: int = AGENT_OUTPUT_TOKENS
    """Tokens that an answer may have."""
    notices: tuple[str, ...] = ()
    """What could not be read, or not whole, and why."""
    folders: tuple[str, ...] = ()
    """Where rules were looked for, and may come to be: the nearest last."""

    @property
    def prompt(self) -> str:
        """The whole system prompt."""
        return "\n\n".join(
            filter(None, (self.system.strip(), _format_skill_list(self.skills), *map(_format_rules, self.rules)))
        )

    def build_fields(self, api: str) -> dict[str, Any]:
        """Return the fields of a request of ``api`` beside its messages; ``UnrecognizedContent`` for another API.

        Where the API has no field for the system prompt, it is a message that stands before all others.
        """
        spec = get_api_spec(api)
        body, _ = write_request_options(api, PortableOptions(tools=self.tools, max_tokens=self.max_output))
        return {**self._build_prompt_field(spec), **body}

    def _build_prompt_field(self, spec: ApiSpec) -> dict[str, Any]:
        """Return the field that holds the system prompt."""
        if not self.prompt:
            return {}
        if spec.system_fields:
            return build_system_field(spec, [self.prompt])
        if spec.options.instructions_field:
            return {spec.options.instructions_field: self.prompt}
        return {spec.messages_field: [{"role": "system", "content": self.prompt}]}

    def restore_texts(
        self, messages: Iterable[Message] = (), *, skills: Sequence[str] = (), max_tokens: int = RESTORED_SKILLS_TOKENS
    ) -> tuple[str, ...]:
        """Return the texts that stand behind a summary again, each from its source and within its budget.

        They are the rules that changed or came since the system prompt was made (the others are in it), the skills that
        were used, the last one first, and the plan. ``messages`` are the active branch: what it tells of skills and
        plan counts, also after a restart. ``max_tokens`` are the tokens of all skills.
        """
        history = tuple(messages)
        skills_by_name = {skill.name: skill for skill in self.skills}
        used_names = find_used_skills(history, {name: skill.path for name, skill in skills_by_name.items()})
        used = [skills_by_name[name] for name in dict.fromkeys((*skills, *used_names)) if name in skills_by_name]
        return (
            *_find_changed_rules(self.folders, self.rules),
            *_read_skill_bodies(used, max_tokens),
            *render_restored_todos(history, RESTORED_PLAN_TOKENS),
        )


def load_environment(
    folder: str | Path,
    *,
    system: str = "",
    tools: Sequence[FunctionTool] = (),
    parent_folders: Sequence[str | Path] = (),
    skills: Sequence[str | Path] = (),
) -> Environment:
    """Return the environment of an agent that works in ``folder``.

    The rules are those of ``parent_folders``, the outermost first, then those of ``folder``; skills are found in the
    same folders (``.agents/skills``, ``.claude/skills``) and in ``skills``, the nearest one of a name counting. Nothing
    raises: what cannot be read is told in ``notices``.
    """
    folders = [Path(path).resolve() for path in (*parent_folders, folder)]
    rules, rules_notices = _read_rules(folders)
    all_skills, skill_notices = find_skills(folders, [Path(path).resolve() for path in skills])
    places = tuple(dict.fromkeys(map(str, folders)))
    return Environment(
        system, tuple(tools), all_skills, rules, notices=(*rules_notices, *skill_notices), folders=places
    )


# -- rules -------------------------------------------------------------------------------------------------------------


def _read_rules(folders: Sequence[Path]) -> tuple[tuple[RulesFile, ...], list[str]]:
    """Return the rules of ``folders``, cut so that the nearest are whole, and what could not be read of them."""
    rules: list[RulesFile] = []
    notices: list[str] = []
    room = MAX_RULES_BYTES
    for folder in reversed(list(dict.fromkeys(folders))):
        rule, notice = _read_folder_rules(folder, room)
        notices += [notice] if notice else []
        if rule is not None:
            room -= len(rule.text.encode())
            rules.append(rule)
    return tuple(reversed(rules)), notices


def _read_folder_rules(folder: Path, max_bytes: int) -> tuple[RulesFile | None, str]:
    """Return what the rules of a folder say in ``max_bytes`` bytes, if there are any, and what is wrong with them."""
    path = folder / RULES_FILENAME
    try:
        text, beyond = read_file_beginning(folder, RULES_FILENAME, MAX_RULES_BYTES)
    except FileNotFoundError:
        return None, ""
    except (FormatError, OSError) as error:
        return None, f"the rules in {path} are left out: {error}"
    shown_text = text.encode()[: max(0, max_bytes)].decode("utf-8", "ignore").strip()
    omitted_bytes = beyond + len(text.strip().encode()) - len(shown_text.encode())
    notice = (
        f"the rules in {path} are cut: all rules may have {MAX_RULES_BYTES:,} bytes, and {omitted_bytes:,} are beyond"
    )
    cut_notice = f"\n[{omitted_bytes:,} bytes of {path} are left out here]"
    if not omitted_bytes:
        return (RulesFile(str(path), shown_text, hash_text(text)) if shown_text else None), ""
    return RulesFile(str(path), shown_text + cut_notice, hash_text(text)), notice


def _format_rules(rule: RulesFile) -> str:
    return f"# Rules from {rule.path}\n\n{rule.text}"


def _find_changed_rules(folders: Sequence[str], rules: Sequence[RulesFile]) -> Iterator[str]:
    """Yield the rules that say something else now, or are new, in the order of the system prompt."""
    digests = {rule.path: rule.digest for rule in rules}
    for folder in dict.fromkeys((*map(Path, folders), *(Path(path).parent for path in digests))):
        now, _ = _read_folder_rules(folder, MAX_RULES_BYTES)
        if now is not None and now.digest != digests.get(now.path):
            yield _format_rules(replace(now, text=clip_text_with_notice(now.text, RESTORED_RULE_TOKENS, now.path)))


# -- skills ------------------------------------------------------------------------------------------------------------


def _format_skill_list(skills: Sequence[Skill]) -> str:
    """Return the part of the system prompt that names the skills; their bodies are read when they are wanted."""
    if not skills:
        return ""
    lines = [f"- {skill.name}: {skill.description} (read {SKILL_SCHEME}{skill.name})" for skill in skills]
    return "\n".join(
        ["# Skills", "", "Instructions for special work. Read one before you do what it is about.", *lines]
    )


def _read_skill_bodies(skills: Sequence[Skill], max_tokens: int) -> Iterator[str]:
    """Yield the bodies of ``skills`` as they are now, as far as they fit in ``max_tokens`` tokens."""
    for skill in skills:
        try:
            text = skill.read_body()
        except (FormatError, OSError):
            continue
        clipped_text = clip_text_with_notice(
            text, min(RESTORED_SKILL_TOKENS, max_tokens), f"{SKILL_SCHEME}{skill.name}/{SKILL_FILENAME}"
        )
        max_tokens -= estimate_text_tokens(clipped_text)
        if max_tokens < 0:
            return
        yield format_used_skill(skill.name, clipped_text)
