"""Build the parts of an agent's requests beside the messages: system prompt, tools, skills and rules.

Normal requests and requests for a summary get the same fields from here. ``restore_texts`` returns the texts to show
again after a summary, read anew from their source. Only the given folders are read.
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
from holdfast.providers.api_spec import ApiSpec
from holdfast.providers.common.portable_options import FunctionTool, PortableOptions
from holdfast.providers.registry import get_api_spec
from holdfast.providers.requests.options import write_request_options
from holdfast.providers.requests.request_body import build_system_field

__all__ = ["Environment", "FunctionTool", "RulesFile", "Skill", "load_environment"]

RULES_FILENAME = "AGENTS.md"
"""The file with a folder's rules for agents."""
# As many as Codex takes. Rules are in every request; a file that is larger is documentation.
MAX_RULES_BYTES = 32_768
"""Bytes of rules from all folders together; the nearest folder's come first."""
# A file of some hundred lines fits into one call. More would be taken from the window of every request. Chosen by
# judgement.
AGENT_OUTPUT_TOKENS = 8_000
"""Output limit of an agent's requests."""
# The three budgets are paid with every compaction. Those for skills and rules are Claude Code's.
RESTORED_SKILL_TOKENS = 5_000
"""Tokens of one skill that is shown again after a summary."""
RESTORED_SKILLS_TOKENS = 25_000
"""Tokens of all skills that are shown again; the ones used last come first."""
RESTORED_RULE_TOKENS = 5_000
"""Tokens of one rules file that is shown after a summary because it changed since the system prompt was made."""


class RulesFile(Struct, frozen=True):
    """An ``AGENTS.md``: its path and its text, as far as it is shown."""

    path: str
    text: str
    digest: str = ""
    """Digest of everything that was read of the file, shown or not."""


class Environment(Struct, frozen=True):
    """The system prompt, tools, skills and rules of an agent."""

    system: str = ""
    """The agent's own instructions, which begin the system prompt."""
    tools: tuple[FunctionTool, ...] = ()
    skills: tuple[Skill, ...] = ()
    rules: tuple[RulesFile, ...] = ()
    """Rules files, the nearest folder's last."""
    max_output: int = AGENT_OUTPUT_TOKENS
    """Output limit of the agent's requests."""
    notices: tuple[str, ...] = ()
    """Messages about files that could not be read, or not completely."""
    folders: tuple[str, ...] = ()
    """Folders that may have rules, now or later, the nearest last."""

    @property
    def prompt(self) -> str:
        """The whole system prompt."""
        sections = [self.system.strip(), _format_skill_list(self.skills), *map(_format_rules, self.rules)]
        return "\n\n".join([section for section in sections if section])

    def build_fields(self, api: str, model: str = "") -> dict[str, Any]:
        """Return the fields of requests to ``api`` beside their messages, as ``model`` accepts them.

        If the API has no field for the system prompt, it is a message before all others. Raises
        ``UnrecognizedContent`` for an unknown API.
        """
        spec = get_api_spec(api)
        body, _ = self._write_options(api, model)
        return {**self._build_prompt_field(spec), **body}

    def describe_model_changes(self, api: str, model: str) -> tuple[str, ...]:
        """Return a note on each option that requests have only because ``model`` takes them in no other form."""
        return self._write_options(api, model)[1]

    def _write_options(self, api: str, model: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        return write_request_options(api, PortableOptions(tools=self.tools, max_tokens=self.max_output), model)

    def _build_prompt_field(self, spec: ApiSpec) -> dict[str, Any]:
        """Return the field for the system prompt, under the API's name for it."""
        if not self.prompt:
            return {}
        if spec.system_fields:
            return build_system_field(spec, [self.prompt])
        if spec.options.instructions_field:
            return {spec.options.instructions_field: self.prompt}
        return {spec.messages_field: [{"role": "system", "content": self.prompt}]}

    def restore_texts(
        self,
        messages: Iterable[Message] = (),
        *,
        skills: Sequence[str] = (),
        max_tokens: int = RESTORED_SKILLS_TOKENS,
    ) -> tuple[str, ...]:
        """Return the texts to show again after a summary, each from its source and within its budget.

        These are the rules that are new or changed since the system prompt was made (it has the others), and the
        skills that were used, the last one first. Skills are found in ``messages``, the conversation, so that this
        works after a restart too; ``skills`` names further skills. ``max_tokens`` is for all skills. The to-do list is
        not among them: the planner shows it with everything else that is still open.
        """
        history = tuple(messages)
        skills_by_name = {skill.name: skill for skill in self.skills}
        used_names = find_used_skills(history, {name: skill.path for name, skill in skills_by_name.items()})
        unique_names = dict.fromkeys((*skills, *used_names))
        used_skills = []
        for name in unique_names:
            if name in skills_by_name:
                used_skills.append(skills_by_name[name])
        return (
            *_find_changed_rules(self.folders, self.rules),
            *_read_skill_bodies(used_skills, max_tokens),
        )


def load_environment(
    folder: str | Path,
    *,
    system: str = "",
    tools: Sequence[FunctionTool] = (),
    parent_folders: Sequence[str | Path] = (),
    skills: Sequence[str | Path] = (),
) -> Environment:
    """Load the environment of an agent that works in ``folder``.

    Rules come from ``parent_folders``, the outermost first, and from ``folder``. Skills come from the same folders
    (``.agents/skills``, ``.claude/skills``) and from ``skills``; of several with one name the nearest counts. A file
    that cannot be read does not raise: ``notices`` names it.
    """
    folders = [Path(path).resolve() for path in (*parent_folders, folder)]
    rules, rules_notices = _read_rules(folders)
    all_skills, skill_notices = find_skills(folders, [Path(path).resolve() for path in skills])
    return Environment(
        system,
        tuple(tools),
        all_skills,
        rules,
        notices=(*rules_notices, *skill_notices),
        folders=tuple(dict.fromkeys(map(str, folders))),
    )


# -- rules -------------------------------------------------------------------------------------------------------------


def _read_rules(folders: Sequence[Path]) -> tuple[tuple[RulesFile, ...], list[str]]:
    """Return the rules of ``folders``, outermost first, and messages about files that were cut or left out.

    The nearest folder is read first: if the rules are too long together, the outermost ones are cut.
    """
    rules: list[RulesFile] = []
    notices: list[str] = []
    remaining_bytes = MAX_RULES_BYTES
    unique_folders = list(dict.fromkeys(folders))
    for folder in reversed(unique_folders):
        rules_file, notice = _read_folder_rules(folder, remaining_bytes)
        if notice:
            notices.append(notice)
        if rules_file is not None:
            remaining_bytes -= len(rules_file.text.encode())
            rules.append(rules_file)
    rules.reverse()
    return tuple(rules), notices


def _read_folder_rules(folder: Path, max_bytes: int) -> tuple[RulesFile | None, str]:
    """Return a folder's rules, cut to ``max_bytes``, or None if it has none, and a message if they are not complete.

    The digest does not depend on ``max_bytes``, so that rules read with another budget can be compared.
    """
    path = folder / RULES_FILENAME
    try:
        text, unread_bytes = read_file_beginning(folder, RULES_FILENAME, MAX_RULES_BYTES)
    except FileNotFoundError:
        return None, ""
    except (FormatError, OSError) as error:
        return None, f"the rules in {path} are left out: {error}"
    shown_text = text.encode()[: max(0, max_bytes)].decode("utf-8", "ignore").strip()
    omitted_bytes = unread_bytes + len(text.strip().encode()) - len(shown_text.encode())
    digest = hash_text(text)
    if not omitted_bytes:
        return (RulesFile(str(path), shown_text, digest) if shown_text else None), ""
    cut_notice = f"\n[{omitted_bytes:,} bytes of {path} are left out here]"
    message = (
        f"the rules in {path} are cut by {omitted_bytes:,} bytes: {MAX_RULES_BYTES:,} are allowed for all; shorten them"
    )
    return RulesFile(str(path), shown_text + cut_notice, digest), message


def _format_rules(rule: RulesFile) -> str:
    return f"# Rules from {rule.path}\n\n{rule.text}"


def _find_changed_rules(folders: Sequence[str], rules: Sequence[RulesFile]) -> Iterator[str]:
    """Yield the rules that are new or changed since ``rules`` were read, formatted as in the system prompt."""
    old_digests = {rules_file.path: rules_file.digest for rules_file in rules}
    rule_folders = [Path(path).parent for path in old_digests]
    for folder in dict.fromkeys((*map(Path, folders), *rule_folders)):
        current_rules, _ = _read_folder_rules(folder, MAX_RULES_BYTES)
        if current_rules is None or current_rules.digest == old_digests.get(current_rules.path):
            continue
        clipped_text = clip_text_with_notice(current_rules.text, RESTORED_RULE_TOKENS, current_rules.path)
        yield _format_rules(replace(current_rules, text=clipped_text))


# -- skills ------------------------------------------------------------------------------------------------------------


def _format_skill_list(skills: Sequence[Skill]) -> str:
    """Return the section of the system prompt that lists the skills; the model reads a body when it needs it."""
    if not skills:
        return ""
    lines = [f"- {skill.name}: {skill.description} (read {SKILL_SCHEME}{skill.name})" for skill in skills]
    introduction = "Instructions for special work. Read one before you do what it is about."
    return "\n".join(["# Skills", "", introduction, *lines])


def _read_skill_bodies(skills: Sequence[Skill], max_tokens: int) -> Iterator[str]:
    """Yield the current bodies of ``skills``, as many as fit into ``max_tokens``; unreadable ones are skipped."""
    for skill in skills:
        try:
            text = skill.read_body()
        except (FormatError, OSError):
            continue
        source = f"{SKILL_SCHEME}{skill.name}/{SKILL_FILENAME}"
        clipped_text = clip_text_with_notice(text, min(RESTORED_SKILL_TOKENS, max_tokens), source)
        max_tokens -= estimate_text_tokens(clipped_text)
        if max_tokens < 0:
            return
        yield format_used_skill(skill.name, clipped_text)
