"""What Holdfast knows of an API: one ``ApiSpec`` says all of it, built in the folder of the API.

Everything that differs from API to API is a field here, so that shared code asks the spec and never the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media
from holdfast.providers.common.compaction import JsonObject, NativeCompactionRequest
from holdfast.providers.common.error_forms import ErrorFormat
from holdfast.providers.common.json.raw_json import JsonBytes
from holdfast.providers.common.portable_options import OptionFields, PortableOptions
from holdfast.providers.common.shared_options import SharedOptionForm
from holdfast.state.dialect import Dialect

if TYPE_CHECKING:
    from holdfast.providers.answers.accumulator import StreamAccumulator
    from holdfast.providers.answers.parsed_answer import ParsedAnswer
    from holdfast.providers.answers.usage_pair import UsageParser
    from holdfast.providers.rules.envelope import RequestView
    from holdfast.providers.rules.rule import Rule

FieldPath: TypeAlias = tuple[str, ...]
"""Where a field stands, from the top of a body."""
MessageGroup: TypeAlias = tuple[int, int, Message]
"""Where a message begins in the list, where it ends, and what it says."""


class AnswerFormat(Struct, frozen=True):
    """How an API answers, in one body and as a stream."""

    parse_body: Callable[[Mapping[str, Raw]], ParsedAnswer]
    """Reads the fields of a whole body."""
    new_accumulator: Callable[[], StreamAccumulator]
    """Puts the events of a stream together."""
    parse_usage: UsageParser
    iter_event_text: Callable[[dict[str, Any]], Iterator[str]]
    """Yields the words of the answer in one event; no thinking, no calls."""
    keep_alive: bytes
    """What its clients read over while they wait for the first event of a stream."""
    streams_json_array: bool = False
    """A stream may come as one JSON array too, not only as server-sent events."""


class OptionFormat(Struct, frozen=True):
    """How an API says what a request asks for beside its messages."""

    read: Callable[[dict[str, Any]], PortableOptions]
    write: Callable[[PortableOptions], OptionFields]
    shared: SharedOptionForm
    is_own_tool_choice: Callable[[Any], bool]
    """Whether the value of ``tool_choice`` is said as this API says it."""
    tool_choice_fields: tuple[str, ...] = ("tool_choice",)
    """Fields that say which tools may or must be called."""
    stream_fields: Mapping[str, Any] = {}
    """Fields that ask for events, and for the usage at their end."""
    requires_max_tokens: bool = False
    """A request must say how long an answer may be."""
    instructions_field: str = ""
    """The field of a system prompt that is a plain text, where messages may say one too."""
    stored_history_fields: tuple[str, ...] = ()
    """Fields by which a body refers to history that its provider holds."""
    stored_prompt_fields: tuple[str, ...] = ()
    """Fields that refer to stored messages where the body has none of its own."""
    reference_item_types: tuple[str, ...] = ()
    """Types of elements that stand for one that the provider holds."""


class RuleSet(Struct, frozen=True):
    """What the validator judges a request by."""

    build_view: Callable[[RequestView], RequestView]
    """Reads a request as the rules look at it."""
    rules: tuple[Rule, ...]
    required: tuple[Rule, ...] = ()
    """What a whole request names beside its messages; parts of one, as tests and replays judge them, need not."""


class Endpoints(Struct, frozen=True):
    """Where an API is reached, and how its requests are told by their address.

    Paths begin with the version; ``{model}`` stands for the model where the address names it.
    """

    provider: str
    """Whose API it is: the name under which addresses, keys and prices are kept."""
    generate: str
    """Where an answer is asked for."""
    stream: str = ""
    """Where an answer that streams is asked for, if the address says it and not the body."""
    count: str = ""
    """Where tokens are counted; empty where the API cannot."""
    compact: str = ""
    """Where a compaction is asked for; empty where the API has no address for it."""
    sdk_base: str = ""
    """How much of a path its SDK's base address has already."""
    default_headers: Mapping[str, str] = {}
    """Headers that the API wants of every request, as it is spoken here."""
    offers_websocket: bool = False
    """Clients may ask for a WebSocket at ``generate``."""
    count_wrapper_field: str = ""
    """The field of a count that may hold a whole request."""
    captured_path: str = ""
    """A pattern that is found in the path of a recorded request; its group is the model."""
    relayed_path: str = ""
    """A pattern of how the other paths of its provider begin; empty where no path is known to be its own."""
    client_headers: frozenset[str] = frozenset()
    """Headers, in lower case, that only its clients send."""
    client_programs: tuple[str, ...] = ()
    """How the ``user-agent`` of its clients begins, in lower case."""

    @property
    def names_model(self) -> bool:
        """Whether the address names the model."""
        return "{model}" in self.generate

    @property
    def version(self) -> str:
        """The version that paths begin with, such as ``/v1``."""
        return "/" + self.generate.split("/", 2)[1]

    def get_path(self, endpoint: str, *, stream: bool = False) -> str:
        """Return the path of ``generate``, ``count`` or ``compact``; empty where there is none."""
        if stream and endpoint == "generate" and self.stream:
            return self.stream
        return {"generate": self.generate, "count": self.count, "compact": self.compact}.get(endpoint, "")


class ListSigns(Struct, frozen=True):
    """By what a list of messages without a body around it is known to be this API's."""

    roles: frozenset[str] = frozenset()
    """Roles of messages that only it writes."""
    has_tool_calls: bool = False
    """Calls stand in a list ``tool_calls`` of a message."""
    block_types: frozenset[str] = frozenset()
    """Types of blocks that only it writes."""
    sourced_block_types: frozenset[str] = frozenset()
    """Types of blocks that are its where they have a ``source``."""
    likely_block_types: frozenset[str] = frozenset()
    """Types of blocks that are most likely its, though routers take them elsewhere too."""
    item_types: frozenset[str] = frozenset()
    """Types of elements without a role."""
    item_type_ends: tuple[str, ...] = ()
    """How other such types end."""
    likely_message_types: frozenset[str] = frozenset()
    """Types that messages with a role have."""
    has_parts: bool = False
    """What a message says stands in a list ``parts``."""
    has_breakpoints: bool = False
    """Blocks may carry ``cache_control``."""

    def is_item_type(self, type_: str) -> bool:
        """Return whether an element of this type has no role."""
        return type_ in self.item_types or type_.endswith(self.item_type_ends)


class BodySigns(Struct, frozen=True):
    """By what a request body is known to be this API's."""

    lone_fields: frozenset[str] = frozenset()
    """Top-level fields that tell it without a list of messages."""
    other_call_fields: frozenset[str] = frozenset()
    """Fields of other calls of its provider that have the same fields."""
    typical_fields: frozenset[str] = frozenset()
    """Top-level fields that it has and others with a list of the same name have not."""
    exclusive_fields: frozenset[str] = frozenset()
    """Those of them that no server takes for another API; gateways pass some on."""
    tool_fields: tuple[str, ...] = ()
    """Fields of a tool that only this API has."""
    tool_types: tuple[bytes, ...] = ()
    """Types of a tool that only this API has, as JSON."""
    roles: frozenset[str] = frozenset()
    """Roles of messages that only it has."""
    certain_roles: frozenset[str] = frozenset()
    """Those of them that nobody writes by mistake."""
    has_tool_calls: bool = False
    """Calls stand in a list ``tool_calls`` of a message."""
    block_types: frozenset[str] = frozenset()
    """Types of blocks that only it has."""
    block_type_ends: tuple[str, ...] = ()
    """How other such types end."""
    certain_block_types: frozenset[str] = frozenset()
    """Types of blocks that an answer has in no other API."""
    starts_with_system: bool = False
    """A system message may stand first."""
    listed: ListSigns = ListSigns()
    model_name: bytes = b""
    """What the names of its models have in them, in lower case."""


class MessageShape(Struct, frozen=True):
    """How a message of the list looks, for what puts damaged ones right."""

    roles: tuple[str, ...]
    """Roles that a message may have; an empty one where it may have none."""
    assistant_role: str = "assistant"
    content_field: str = "content"
    """The field that holds what a message says."""
    text_types: tuple[str, str] = ("text", "text")
    """The type of a block of words of the user's and of the assistant's; empty where blocks have no type."""
    foreign_call_types: frozenset[str] = frozenset()
    """Types of calls and results of other APIs, which a block of this one cannot be."""
    results_hold_media: bool = True
    """A result may hold more than words."""
    can_show_media: Callable[[Media], bool] | None = None
    """Whether a user can show such media; all of them where nothing says it."""
    has_error_flag: bool = True
    """A result has a mark that it is an error."""
    image_url_is_object: bool = False
    """The address of an image stands in an object."""


class BlockForms(Struct, frozen=True):
    """How the pieces of a message are known to be written for this API, among those of others."""

    parsed_kinds: tuple[str, ...]
    """Kinds that its module makes parts of; one that stayed opaque did not have the shape it should."""
    telling_kinds: tuple[str, ...]
    """Kinds by which its parts are known among those of another, which a converter may have left behind."""
    more_refused_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that it refuses beside those and the ones of other APIs."""
    kinds_by_type: Mapping[str, str] = {}
    """What an element of such a type is."""
    later_kinds_by_type: Mapping[str, str] = {}
    """The same, of types that another API has too and reads better."""
    kinds_by_type_and_field: Mapping[tuple[str, str], str] = {}
    """The same, of types that others have too, by the field by which this one is known."""
    kinds_by_field: Mapping[str, str] = {}
    """What an element without a type is, by the field that holds an object."""
    built_in_type_ends: tuple[str, ...] = ()
    """How the types of the calls of built-in tools end, and of what came of them."""
    compaction_field: str = ""
    """The field by which a compaction is known to be its."""
    call_fields: Mapping[str, type] = {}
    """Fields of an answer that hold calls beside its content, and what they are: a list or a mapping."""
    result_roles: tuple[str, ...] = ()
    """Roles of messages that are results."""
    own_message_fields: frozenset[str] = frozenset()
    """Fields beside the content that say something here, and nowhere else."""
    own_roles: tuple[str, ...] = ()
    """Roles that not every API knows."""
    takes_any_role: bool = False
    """A message is told by the field of its content, whatever its role."""
    writes_block_types: tuple[str, ...] = ()
    """Types of words and calls that tell of bytes alone who wrote them."""
    own_forms: Mapping[str, str] = {}
    """What it has for each kind of thing, in words."""
    is_own_tool: Callable[[Mapping[str, Any]], bool] = lambda _tool: False
    """Whether a function of the client's is offered in its form."""


class CompactionFormat(Struct, frozen=True):
    """How the provider of an API compacts a conversation itself."""

    min_threshold_tokens: int
    """Input tokens under which it refuses a threshold."""
    build_threshold_fields: Callable[[int, str, bool], JsonObject]
    """The fields with which it compacts by itself above some input tokens, from those, the instructions for it, and
    whether it is to stop behind the compaction."""
    build_request: Callable[[Mapping[str, Raw], str, bool], NativeCompactionRequest]
    """A request for nothing but a compaction, from the fields of a body, instructions, and whether it is asked for
    among the messages where there is an address too."""
    wrap_block: Callable[[Raw], Raw]
    """A compaction as an element of the list of messages."""
    find_betas: Callable[[bytes], tuple[str, ...]] | None = None
    """The beta features that a body needs for what stands in it."""
    returns_history: bool = False
    """On demand the next list of messages comes back, with the user's among them, and not the compaction alone."""


class ApiSpec(Struct, frozen=True):
    """What is known of an API."""

    api: str
    display_name: str
    """What its provider calls it."""
    messages_field: str
    """The list of messages in a body."""
    decode_message: Callable[[JsonBytes], Message]
    """One element of the list, or one run of them, as a message."""
    encode_message: Callable[[Message, Raw | None], list[bytes]]
    """A message as elements of the list, over what stood there."""
    setup_fields: tuple[str, ...]
    """Fields that stand before the messages in the prompt, in the order the provider renders them."""
    max_tokens_paths: tuple[FieldPath, ...]
    """Where the asked output stands; the first is used when a body has none."""
    build_dialect: Callable[[str, str], Dialect]
    """The rules for a model at a provider, empty where its name is to tell; without ``refused_kinds``, which come from
    all APIs together."""
    answers_module: str
    """The module in which ``ANSWERS`` says how it answers; loaded when first asked, see ``answers``."""
    rules_module: str
    """The module in which ``RULES`` says what a request is judged by; loaded when first asked, see ``rules``."""
    options: OptionFormat
    errors: ErrorFormat
    endpoints: Endpoints
    signs: BodySigns
    shape: MessageShape
    blocks: BlockForms
    relax_dialect: Callable[[Dialect], Dialect] | None = None
    """The rules for what a client wrote for a server of its own, of which nothing is known here."""
    system_fields: tuple[str, ...] = ()
    """The field of the system prompt and its other spellings, where it is no message."""
    group_items: Callable[[Sequence[Raw]], list[MessageGroup]] | None = None
    """Reads all elements, where neighbours may make one message."""
    to_list_bytes: Callable[[Raw], JsonBytes] | None = None
    """The bytes of a message as they stand between the brackets of the list."""
    link_results: Callable[[Sequence[Message]], list[Message]] | None = None
    """Ties results to calls by their order, where ids are optional."""
    adapt_outputs: Callable[[list[list[JsonBytes]]], list[list[JsonBytes]]] | None = None
    """Fits new elements to each other, where one depends on another."""
    compaction: CompactionFormat | None = None
    """How its provider compacts, where it does."""
    signed_part_types: tuple[type, ...] = ()
    """The kinds of parts that its provider signs; elsewhere a signature is only the name of a field."""
    sealed_history_kinds: frozenset[str] = frozenset()
    """Kinds of opaque parts in which it gives back a whole past that only it can read."""
    element_name: str = "the message"
    """What errors call an element of the list."""
    accepts_plain_text: bool = False
    """The list may be a plain string."""
    has_model_field: bool = True
    """The body names its model."""
    supports_cache_control: bool = False
    """Explicit cache breakpoints (``cache_control``) may be set."""

    @property
    def answers(self) -> AnswerFormat:
        """How it answers. Planning needs none of it, and reading errors takes longer to load than all else here."""
        answers: AnswerFormat = _load_value(self.answers_module, "ANSWERS")
        return answers

    @property
    def rules(self) -> RuleSet:
        """What the validator judges a request by, which is for ``lint``, ``fix`` and tests alone."""
        rules: RuleSet = _load_value(self.rules_module, "RULES")
        return rules


@cache
def _load_value(module: str, name: str) -> Any:
    return getattr(import_module(module), name)
