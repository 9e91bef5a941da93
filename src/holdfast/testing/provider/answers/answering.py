"""What a request that passed is answered: words and calls, a compaction, or both."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from holdfast.messages.parts import Opaque
from holdfast.testing.provider.answers.compacting import (
    compaction_block,
    compaction_item,
    on_demand,
    summary,
    threshold,
    triggered,
)
from holdfast.testing.provider.answers.saying import Setting, fit, speak
from holdfast.testing.provider.calls import Answered, Compacted, Said, Stop, Used
from holdfast.testing.provider.judge.limits import Measure
from holdfast.testing.provider.reading import Request
from holdfast.testing.provider.seals.signing import Checked


class Scene(Struct, frozen=True):
    """A request that passed, and all that its answer depends on."""

    request: Request
    measured: Measure
    """What of it the model reads."""
    setting: Setting
    used: Used
    """The input's usage."""
    checked: Checked
    window: int
    count: Callable[[str], int]
    """Tokens of a text."""

    @property
    def id(self) -> str:
        """The id of the answer."""
        return self.setting.id(_IDS[self.setting.api])


_IDS = {"anthropic": "msg_", "openai-chat": "chatcmpl-", "openai-responses": "resp_", "gemini": ""}
"""How the ids of answers begin."""


def reply(scene: Scene, say: Callable[[], Said]) -> Answered | Compacted:
    """Return the reply; ``say`` is asked for words only where the model speaks."""
    if scene.request.asked.endpoint == "compact":
        return _endpoint(scene)
    if on_demand(scene.request) or triggered(scene.request):
        return _compaction(scene, signed=True)
    above = threshold(scene.request)
    if above is None or scene.measured.tokens <= above[0]:
        return _answer(scene, say())
    return _compaction(scene, signed=False) if above[1] else _both(scene, say())


def _answer(scene: Scene, said: Said) -> Answered:
    """Return what the model says, as much as there is room for."""
    asked, room = scene.request.output, max(0, scene.window - scene.used.counted)
    free = asked if scene.measured.cut else room if asked is None else min(asked, room)
    fitted = fit(said, free, scene.count)
    is_full = fitted.stop == "length" and free != asked
    stop: Stop = "window" if is_full and scene.setting.api == "anthropic" else fitted.stop
    usage = replace(scene.used, output=fitted.output, reasoning=fitted.reasoning)
    parts = speak(fitted.said, scene.setting)
    return Answered(scene.id, scene.setting.model, parts, stop, usage, dropped=scene.checked.dropped)


# -- compactions -------------------------------------------------------------------------------------------------------


def _part(scene: Scene, *, signed: bool) -> Opaque:
    if scene.setting.api == "anthropic":
        return Opaque("compaction", Raw(compaction_block(scene.checked.pieces, signed=signed)))
    return Opaque("compaction", Raw(compaction_item(scene.setting.id("cmp_"), scene.checked.pieces)))


def _spent(scene: Scene) -> Used:
    """Return what the compaction itself used."""
    return replace(scene.used, output=scene.count(summary(scene.checked.pieces)))


def _compaction(scene: Scene, *, signed: bool) -> Answered:
    """Return a compaction of all that was sent, and nothing else; Anthropic leaves it out of the usage at the top."""
    spent, parts = _spent(scene), (_part(scene, signed=signed),)
    apart = scene.setting.api == "anthropic"
    usage, other = (Used(0, 0), spent) if apart else (spent, None)
    return Answered(scene.id, scene.setting.model, parts, "compaction", usage, other, scene.checked.dropped)


def _both(scene: Scene, said: Said) -> Answered:
    """Return a compaction and the answer behind it; Anthropic's model then reads the frame and the summary alone."""
    part, spent = _part(scene, signed=False), _spent(scene)
    if scene.setting.api != "anthropic":
        answer = _answer(scene, said)
        return replace(answer, parts=(part, *answer.parts))
    answer = _answer(replace(scene, used=Used(scene.measured.frame + spent.output, 0)), said)
    return replace(answer, parts=(part, *answer.parts), compaction=spent)


def _endpoint(scene: Scene) -> Compacted:
    """Return the user's messages, then one item that stands for everything."""
    mine = [one.value for one in scene.checked.pieces if one.section == "messages" and one.role == "user"]
    item = compaction_item(scene.setting.id("cmp_"), scene.checked.pieces)
    return Compacted(scene.id, (*map(msgspec.json.encode, mine), item), _spent(scene))
