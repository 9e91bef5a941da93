"""What an agent works in: its system prompt, tools, skills and rules, made in one place.

A normal request and one that asks for a summary get the same ``fields``; what has to stand behind a summary again comes
from its source with ``restored``. Only the folders that are given are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.engine.environment.folder import beginning
from holdfast.engine.environment.skills import SCHEME, SKILL, Skill, found_skills, in_use, used_skills
from holdfast.errors import FormatError
from holdfast.messages.message import Message
from holdfast.messages.size.tokens import count
from holdfast.messages.text.clipping import clipped
from holdfast.messages.text.cutting import fingerprint
from holdfast.planning.extract.restored_files import restored_plan
from holdfast.providers.common.request_options import Asked, Tool, write
from holdfast.providers.registry import Form, form_of
from holdfast.providers.request_body import system_field

__all__ = ["Environment", "Rule", "Skill", "Tool", "environment"]

RULES = "AGENTS.md"
"""The file with a folder's rules for agents."""
RULES_BYTES = 32_768
"""[H] Bytes of rules that all folders together may bring, the nearest first; Codex takes as many."""
OUTPUT = 8_000
"""[H] Tokens of an answer that are asked for: a file of some hundred lines fits."""
SKILL_TOKENS = 5_000
"""[K] Tokens of a skill that stand behind a summary again."""
RESTORED_TOKENS = 25_000
"""[K] Tokens of all skills that stand there, the ones used last first."""
RULE_TOKENS = 5_000
"""[K] Tokens of rules that changed or came since the system prompt was made, and stand there for that."""
PLAN_TOKENS = 2_000
"""[H] Tokens of the plan that stand there: a list of some dozen items has a few hundred."""


class Rule(Struct, frozen=True):
    """What an ``AGENTS.md`` says, and where it lies."""

    path: str
    text: str
    digest: str = ""
    """Of all that was read of the file, shown or not."""


class Environment(Struct, frozen=True):
    """System prompt, tools, skills and rules of an agent."""

    system: str = ""
    """The words of whoever made the agent."""
    tools: tuple[Tool, ...] = ()
    skills: tuple[Skill, ...] = ()
    rules: tuple[Rule, ...] = ()
    """The nearest last."""
    output: int = OUTPUT
    """Tokens that an answer may have."""
    notices: tuple[str, ...] = ()
    """What could not be read, or not whole, and why."""
    folders: tuple[str, ...] = ()
    """Where rules were looked for, and may come to be: the nearest last."""

    @property
    def prompt(self) -> str:
        """The whole system prompt."""
        return "\n\n".join(filter(None, (self.system.strip(), _listed(self.skills), *map(_ruled, self.rules))))

    def fields(self, api: str) -> dict[str, Any]:
        """Return the fields of a request of ``api`` beside its messages; ``Unrecognised`` for another API.

        Where the API has no field for the system prompt, it is a message that stands before all others.
        """
        form = form_of(api)
        body, _ = write(api, Asked(tools=self.tools, limit=self.output))
        return {**self._prompted(form), **body}

    def _prompted(self, form: Form) -> dict[str, Any]:
        """Return the field that holds the system prompt."""
        if not self.prompt:
            return {}
        told: dict[str, dict[str, Any]] = {
            "openai-responses": {"instructions": self.prompt},
            "openai-chat": {form.field: [{"role": "system", "content": self.prompt}]},
        }
        return told.get(form.api) or system_field(form, [self.prompt])

    def restored(
        self, messages: Iterable[Message] = (), *, skills: Sequence[str] = (), most: int = RESTORED_TOKENS
    ) -> tuple[str, ...]:
        """Return the texts that stand behind a summary again, each from its source and within its budget.

        They are the rules that changed or came since the system prompt was made (the others are in it), the skills that
        were used, the last one first, and the plan. ``messages`` are the active branch: what it tells of skills and
        plan counts, also after a restart. ``most`` are the tokens of all skills.
        """
        said = tuple(messages)
        known = {skill.name: skill for skill in self.skills}
        told = used_skills(said, {name: skill.path for name, skill in known.items()})
        used = [known[name] for name in dict.fromkeys((*skills, *told)) if name in known]
        return (*_changed(self.folders, self.rules), *_bodies(used, most), *restored_plan(said, PLAN_TOKENS))


def environment(
    folder: str | Path,
    *,
    system: str = "",
    tools: Sequence[Tool] = (),
    above: Sequence[str | Path] = (),
    skills: Sequence[str | Path] = (),
) -> Environment:
    """Return the environment of an agent that works in ``folder``.

    The rules are those of ``above``, the outermost first, then those of ``folder``; skills are found in the same
    folders (``.agents/skills``, ``.claude/skills``) and in ``skills``, the nearest one of a name counting. Nothing
    raises: what cannot be read is told in ``notices``.
    """
    folders = [Path(one).resolve() for one in (*above, folder)]
    rules, missed = _rules(folders)
    found, more = found_skills(folders, [Path(one).resolve() for one in skills])
    places = tuple(dict.fromkeys(map(str, folders)))
    return Environment(system, tuple(tools), found, rules, notices=(*missed, *more), folders=places)


# -- rules -------------------------------------------------------------------------------------------------------------


def _rules(folders: Sequence[Path]) -> tuple[tuple[Rule, ...], list[str]]:
    """Return the rules of ``folders``, cut so that the nearest are whole, and what could not be read of them."""
    found: list[Rule] = []
    notices: list[str] = []
    room = RULES_BYTES
    for folder in reversed(list(dict.fromkeys(folders))):
        rule, notice = _rule(folder, room)
        notices += [notice] if notice else []
        if rule is not None:
            room -= len(rule.text.encode())
            found.append(rule)
    return tuple(reversed(found)), notices


def _rule(folder: Path, room: int) -> tuple[Rule | None, str]:
    """Return what the rules of a folder say in ``room`` bytes, if there are any, and what is wrong with them."""
    path = folder / RULES
    try:
        text, beyond = beginning(folder, RULES, RULES_BYTES)
    except FileNotFoundError:
        return None, ""
    except (FormatError, OSError) as error:
        return None, f"the rules in {path} are left out: {error}"
    held = text.encode()[: max(0, room)].decode("utf-8", "ignore").strip()
    left = beyond + len(text.strip().encode()) - len(held.encode())
    notice = f"the rules in {path} are cut: all rules may have {RULES_BYTES:,} bytes, and {left:,} are beyond"
    cut = f"\n[{left:,} bytes of {path} are left out here]"
    if not left:
        return (Rule(str(path), held, fingerprint(text)) if held else None), ""
    return Rule(str(path), held + cut, fingerprint(text)), notice


def _ruled(rule: Rule) -> str:
    return f"# Rules from {rule.path}\n\n{rule.text}"


def _changed(folders: Sequence[str], rules: Sequence[Rule]) -> Iterator[str]:
    """Yield the rules that say something else now, or are new, in the order of the system prompt."""
    known = {rule.path: rule.digest for rule in rules}
    for folder in dict.fromkeys((*map(Path, folders), *(Path(path).parent for path in known))):
        now, _ = _rule(folder, RULES_BYTES)
        if now is not None and now.digest != known.get(now.path):
            yield _ruled(replace(now, text=clipped(now.text, RULE_TOKENS, now.path)))


# -- skills ------------------------------------------------------------------------------------------------------------


def _listed(skills: Sequence[Skill]) -> str:
    """Return the part of the system prompt that names the skills; their bodies are read when they are wanted."""
    if not skills:
        return ""
    lines = [f"- {skill.name}: {skill.description} (read {SCHEME}{skill.name})" for skill in skills]
    return "\n".join(
        ["# Skills", "", "Instructions for special work. Read one before you do what it is about.", *lines]
    )


def _bodies(skills: Sequence[Skill], most: int) -> Iterator[str]:
    """Yield the bodies of ``skills`` as they are now, as far as they fit in ``most`` tokens."""
    for skill in skills:
        try:
            text = skill.body()
        except (FormatError, OSError):
            continue
        shown = clipped(text, min(SKILL_TOKENS, most), f"{SCHEME}{skill.name}/{SKILL}")
        most -= count(shown)
        if most < 0:
            return
        yield in_use(skill.name, shown)
