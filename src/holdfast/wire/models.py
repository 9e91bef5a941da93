"""What the models of an API accept, by their names: one small table.

Only rules stand here; windows and prices are in the catalogue. A name that no row fits gets the strictest values.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from holdfast.model.dialect import Dialect


class Traits(Struct, frozen=True):
    """What differs between the Claude models; the defaults are for a name nobody knows."""

    prefill: bool = False
    """The last message may be the assistant's (up to 4.5)."""
    system_inside: bool = False
    """``system`` messages may stand between a user's message and an answer."""
    binds: bool = True
    """Thinking is signed over everything before it ("preserved thinking")."""
    images: int = 100
    """Images in one request: 100 where the window is 200,000 tokens, 600 otherwise."""
    manual: bool | None = None
    """``thinking.type`` may be ``enabled`` with a budget; nothing = not known."""
    adaptive: bool | None = None
    """``thinking.type`` may be ``adaptive``; nothing = not known."""
    disabled: bool | None = None
    """``thinking.type`` may be ``disabled``; nothing = not known."""
    disabled_at_any_effort: bool = True
    """``disabled`` goes with the efforts ``xhigh`` and ``max`` too."""


_OLD = Traits(prefill=True, binds=False, images=100, manual=True, adaptive=False, disabled=True)
_LAST_OLD = (4, 5)
"""Up to 4.5: prefill, manual thinking, a window of 200,000 tokens."""

_TABLE: dict[str, Traits] = {
    "opus 4.6": Traits(binds=False, images=600, manual=True, adaptive=True, disabled=True),
    "opus 4.7": Traits(binds=False, images=600, manual=False, adaptive=True, disabled=True),
    "opus 4.8": Traits(system_inside=True, binds=False, images=600, manual=False, adaptive=True, disabled=True),
    "opus 5.0": Traits(
        system_inside=True,
        binds=False,
        images=600,
        manual=False,
        adaptive=True,
        disabled=True,
        disabled_at_any_effort=False,
    ),
    "opus 5.5": Traits(images=600, manual=False, adaptive=True),
    "sonnet 4.6": Traits(binds=False, images=600, manual=True, adaptive=True, disabled=True),
    "sonnet 5.0": Traits(binds=False, images=600, manual=False, adaptive=True, disabled=True),
    "sonnet 5.5": Traits(images=600, manual=False, adaptive=True),
    "haiku 5.5": Traits(adaptive=True),
    "fable 5.0": Traits(system_inside=True, binds=False, images=600, manual=False, adaptive=True, disabled=False),
    "fable 5.1": Traits(system_inside=True, images=600, manual=False, adaptive=True, disabled=False),
    "fable 5.2": Traits(images=600, manual=False, adaptive=True, disabled=False),
}
"""Family and version to rules, as documented up to 2026-11; Mythos is Fable under another name."""

_NEW_STYLE = re.compile(r"(opus|sonnet|haiku|fable|mythos)-(\d{1,2})(?!\d)(?:[-.](\d{1,2})(?!\d))?")
"""``claude-opus-4-5-20251101``, ``claude-opus-4.5``, ``eu.anthropic.claude-sonnet-4-20250514-v1:0``"""
_OLD_STYLE = re.compile(r"claude-(?:v?[12](?!\d)|instant|3(?!\d))")
"""``claude-3-5-sonnet-20241022``, ``claude-2.1``"""


def traits(model: str) -> Traits | None:
    """Return what is known of Claude model ``model``, or nothing when it is none we know."""
    name = model.lower()
    found = _NEW_STYLE.search(name)
    if found is None:
        return _OLD if _OLD_STYLE.search(name) else None
    family, version = found[1], (int(found[2]), int(found[3] or 0))
    if version <= _LAST_OLD:
        return _OLD
    family = "fable" if family == "mythos" else family
    return _TABLE.get(f"{family} {version[0]}.{version[1]}")


def anthropic_dialect(model: str) -> Dialect:
    """Return the rules of the Messages API for ``model``; an unknown name gets the strictest."""
    known = traits(model) or Traits()
    return Dialect(
        "anthropic",
        model,
        thinking_alone=True,
        end_user=not known.prefill,
        merge=traits(model) is None,
        id_max=256,
        name_max=128,
        system_place="turn" if known.system_inside else "first",
        max_images=known.images,
        markers=4,
        lookback=20,
        binds_thinking=known.binds,
    )


CHAT = Dialect(
    "openai-chat",
    start_user=False,
    end_user=False,
    merge=False,
    results_grouped=False,
    object_arguments=False,
    media=(),
    trailing_space=True,
    system_place="any",
    id_pattern=r"[\s\S]",
    id_max=64,
    unique_ids=False,
    empty_text=True,
    media_in_results=False,
    max_images=500,
    max_bytes=50_000_000,
    markers=0,
)
"""Chat Completions. 64 characters an id are taken now, 40 on older deployments, so new ids are made no longer than 40;
images and bytes as the vision guide has them."""


def chat_dialect(model: str) -> Dialect:
    """Return the rules of Chat Completions; they are the same for every ``model``."""
    return replace(CHAT, model=model)
