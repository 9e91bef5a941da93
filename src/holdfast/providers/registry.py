"""The four APIs side by side: where in a body its messages stand, and who reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Raw, Struct

from holdfast.errors import Unrecognised
from holdfast.messages.message import Message
from holdfast.providers.anthropic import messages as anthropic
from holdfast.providers.common.json.raw_json import Bytes
from holdfast.providers.gemini import messages as gemini
from holdfast.providers.openai_chat import messages as openai_chat
from holdfast.providers.openai_responses import messages as openai_responses
from holdfast.state.dialect import Dialect

Path = tuple[str, ...]
"""Where a field stands, from the top of a body."""


Group = tuple[int, int, Message]
"""Where a message begins in the list, where it ends, and what it says."""


class Form(Struct, frozen=True):
    """The form of an API's request bodies."""

    api: str
    name: str
    """What its provider calls it."""
    field: str
    """The list of messages."""
    decode: Callable[[Bytes], Message]
    """One element of the list, or one run of them, as a message."""
    encode: Callable[[Message, Raw | None], list[bytes]]
    """A message as elements of the list, over what stood there."""
    dialect: Callable[[str], Dialect]
    frame: tuple[str, ...]
    """Fields that stand before the messages in the prompt, in the order the provider renders them."""
    limits: tuple[Path, ...]
    """Where the asked output stands; the first is used when a body has none."""
    system: tuple[str, ...] = ()
    """The field of the system prompt and its other spellings, where it is no message."""
    groups: Callable[[Sequence[Raw]], list[Group]] | None = None
    """Reads all elements, where neighbours may make one message."""
    listed: Callable[[Raw], Bytes] | None = None
    """The bytes of a message as they stand between the brackets of the list."""
    linked: Callable[[Sequence[Message]], list[Message]] | None = None
    """Ties results to calls by their order, where ids are optional."""
    finish: Callable[[list[list[Bytes]]], list[list[Bytes]]] | None = None
    """Fits new elements to each other, where one depends on another."""
    text: bool = False
    """The list may be a plain string."""
    named: bool = True
    """The body names its model."""
    markers: bool = False
    """Explicit cache breakpoints (``cache_control``) may be set."""


FORMS: Mapping[str, Form] = {
    form.api: form
    for form in (
        Form(
            anthropic.API,
            "Anthropic Messages",
            "messages",
            anthropic.decode,
            anthropic.encode,
            anthropic.dialect,
            frame=("tools", "system"),
            limits=(("max_tokens",),),
            system=("system",),
            markers=True,
        ),
        Form(
            openai_chat.API,
            "OpenAI Chat Completions",
            "messages",
            openai_chat.decode,
            openai_chat.encode,
            openai_chat.dialect,
            frame=("tools", "functions", "response_format"),
            limits=(("max_completion_tokens",), ("max_tokens",)),
        ),
        Form(
            openai_responses.API,
            "OpenAI Responses",
            "input",
            openai_responses.decode,
            openai_responses.encode,
            openai_responses.dialect,
            frame=("tools", "text", "instructions"),
            limits=(("max_output_tokens",),),
            groups=openai_responses.groups,
            listed=openai_responses.listed,
            finish=openai_responses.answering,
            text=True,
        ),
        Form(
            gemini.API,
            "Gemini generateContent",
            "contents",
            gemini.decode,
            gemini.encode,
            gemini.dialect,
            frame=("tools", "systemInstruction", "system_instruction"),
            limits=(
                ("generationConfig", "maxOutputTokens"),
                ("generationConfig", "max_output_tokens"),
                ("generation_config", "max_output_tokens"),
                ("generation_config", "maxOutputTokens"),
            ),
            system=("systemInstruction", "system_instruction"),
            linked=gemini.linked,
            named=False,
        ),
    )
}
APIS = tuple(FORMS)


def form_of(api: str) -> Form:
    """Return the form of ``api``; ``Unrecognised`` names those there are."""
    if not isinstance(api, str) or api not in FORMS:
        raise Unrecognised(f"no module speaks {api!r}; the APIs are {', '.join(APIS)}")
    return FORMS[api]
