"""Everything that Holdfast knows of an API, as one ``ApiSpec`` value; each API's folder builds its own.

Everything that differs between APIs is a field here, so that shared code asks the spec and never compares API names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Raw, Struct

from holdfast.messages.message import Message
from holdfast.messages.parts import Media
from holdfast.providers.common.compaction import JsonObject, NativeCompactionRequest
from holdfast.providers.common.error_forms import ErrorFormat
from holdfast.providers.common.json.raw_json import JsonBytes
from holdfast.providers.common.option_changes import OptionChange
from holdfast.providers.common.portable_options import OptionFields, PortableOptions
from holdfast.providers.common.schemas.limits import ToolSchemaFormat
from holdfast.providers.common.shared_options import SharedOptionForm
from holdfast.state.dialect import Dialect
from holdfast.state.plan import PlanOptions

if TYPE_CHECKING:
    from holdfast.providers.answers.accumulator import StreamAccumulator
    from holdfast.providers.answers.parsed_answer import ParsedAnswer
    from holdfast.providers.answers.usage_pair import UsageParser
    from holdfast.providers.rules.envelope import RequestView
    from holdfast.providers.rules.rule import Rule

FieldPath: TypeAlias = tuple[str, ...]
"""The keys that lead from the top of a body to a field."""
MessageGroup: TypeAlias = tuple[int, int, Message]
"""A message with the start and stop index of its elements in the list."""


class AnswerFormat(Struct, frozen=True):
    """How an API writes answers, as one body and as a stream."""

    parse_body: Callable[[Mapping[str, Raw]], ParsedAnswer]
    """Parses the fields of a whole body."""
    new_accumulator: Callable[[], StreamAccumulator]
    """Creates an accumulator that puts the events of one stream together."""
    parse_usage: UsageParser
    iter_event_text: Callable[[dict[str, Any]], Iterator[str]]
    """Yields the text of the answer in one decoded event, without thinking and calls."""
    keep_alive: bytes
    """Bytes that clients of this API skip while they wait for the first event of a stream."""
    streams_json_array: bool = False
    """A stream may also come as one JSON array in place of server-sent events."""


class OptionFormat(Struct, frozen=True):
    """How an API writes the options of a request, everything beside its messages."""

    read: Callable[[dict[str, Any]], PortableOptions]
    write: Callable[[PortableOptions], OptionFields]
    shared: SharedOptionForm
    is_own_tool_choice: Callable[[Any], bool]
    """Whether a ``tool_choice`` value has this API's form."""
    tool_choice_fields: tuple[str, ...] = ("tool_choice",)
    """Fields that choose among the tools."""
    stream_fields: Mapping[str, Any] = {}
    """Fields that ask for a stream, and for usage at its end."""
    requires_max_tokens: bool = False
    """A request without an output limit is refused."""
    instructions_field: str = ""
    """The field of a plain-text system prompt, for an API that also accepts system messages."""
    stored_history_fields: tuple[str, ...] = ()
    """Fields that refer to a history stored by the provider. Such a request cannot be converted: its messages are
    missing."""
    stored_prompt_fields: tuple[str, ...] = ()
    """Fields that refer to stored messages, in a body without messages of its own."""
    reference_item_types: tuple[str, ...] = ()
    """Types of list elements that refer to one stored by the provider."""
    find_model_changes: Callable[[Mapping[str, Any], str, str], Sequence[OptionChange]] | None = None
    """Returns the changes that a model and a version of the API need in the decoded options of a body.

    The version is that of the headers, empty if it is unknown.
    """
    describe_unfit_options: Callable[[Mapping[str, Any], str], Sequence[str]] | None = None
    """Returns a note on each option that a model refuses, and that no change helps."""


class RuleSet(Struct, frozen=True):
    """The rules by which the validator judges a request."""

    build_view: Callable[[RequestView], RequestView]
    """Builds the view of a request that the rules read."""
    rules: tuple[Rule, ...]
    required: tuple[Rule, ...] = ()
    """Rules about fields that a whole request must have; fragments, as tests and replays judge them, need not."""


class Endpoints(Struct, frozen=True):
    """Addresses of an API, and signs by which its requests are recognized.

    Paths begin with the version; ``{model}`` stands for the model if the address names it.
    """

    provider: str
    """The name under which addresses, keys and prices of its provider are kept."""
    generate: str
    """Path of a request for an answer."""
    stream: str = ""
    """Path of a request for a streamed answer, if the address says so instead of the body."""
    count: str = ""
    """Path of a token count; empty if the API has no such request."""
    compact: str = ""
    """Path of a compaction; empty if the API has no such request."""
    sdk_base: str = ""
    """The beginning of the paths that is already part of its SDK's base URL."""
    default_headers: Mapping[str, str] = {}
    """Headers that every request needs."""
    operation: str = "chat"
    """What OpenTelemetry's conventions for generative AI call a request for an answer (``gen_ai.operation.name``)."""
    offers_websocket: bool = False
    """Clients may try to open a WebSocket at ``generate`` first."""
    count_wrapper_field: str = ""
    """The field of a token count that may hold a whole request."""
    captured_path: str = ""
    """A pattern to search for in the path of a recorded request; its group is the model."""
    relayed_path: str = ""
    """A pattern for the beginning of other paths of its provider; empty if no path is known to be its own."""
    cloud_path: str = ""
    """A pattern for the end of the paths at which a cloud serves this API, with the model in the address as its group
    ``model``; empty if no cloud does, or only with signed bodies that must not be changed."""
    client_headers: frozenset[str] = frozenset()
    """Headers, in lower case, that only clients of this API send."""
    client_programs: tuple[str, ...] = ()
    """Beginnings of the ``user-agent`` of its clients, in lower case."""

    @property
    def names_model(self) -> bool:
        """Whether the address names the model."""
        return "{model}" in self.generate

    @property
    def version(self) -> str:
        """The version that paths begin with, such as ``/v1``."""
        return "/" + self.generate.split("/", 2)[1]

    def get_path(self, endpoint: str, *, stream: bool = False) -> str:
        """Return the path of ``generate``, ``count`` or ``compact``; empty if the API has no such request."""
        if stream and endpoint == "generate" and self.stream:
            return self.stream
        paths = {"generate": self.generate, "count": self.count, "compact": self.compact}
        return paths.get(endpoint, "")


class ListSigns(Struct, frozen=True):
    """Signs that a bare list of messages, without a body around it, is this API's."""

    roles: frozenset[str] = frozenset()
    """Message roles that no other API has."""
    has_tool_calls: bool = False
    """Calls are in a list ``tool_calls`` of a message."""
    block_types: frozenset[str] = frozenset()
    """Block types that no other API has."""
    sourced_block_types: frozenset[str] = frozenset()
    """Block types that are its own if the block has a ``source``."""
    likely_block_types: frozenset[str] = frozenset()
    """Block types that are most likely its own, though routers accept them elsewhere too."""
    item_types: frozenset[str] = frozenset()
    """Types of list elements without a role."""
    item_type_ends: tuple[str, ...] = ()
    """Endings of further such types."""
    likely_message_types: frozenset[str] = frozenset()
    """Types that elements with a role have."""
    has_parts: bool = False
    """The content of a message is in a list ``parts``."""
    has_breakpoints: bool = False
    """Blocks may carry ``cache_control``."""

    def is_item_type(self, type_: str) -> bool:
        """Return whether an element of this type has no role."""
        return type_ in self.item_types or type_.endswith(self.item_type_ends)


class BodySigns(Struct, frozen=True):
    """Signs that a request body is this API's."""

    lone_fields: frozenset[str] = frozenset()
    """Top-level fields that identify it even without a list of messages."""
    other_call_fields: frozenset[str] = frozenset()
    """Fields of unrelated calls of its provider that share some of these fields."""
    typical_fields: frozenset[str] = frozenset()
    """Top-level fields that it has and APIs with a message list of the same name have not."""
    borrowed_fields: frozenset[str] = frozenset()
    """Those typical fields that servers of the other APIs take too (``thinking`` in Chat Completions)."""
    exclusive_fields: frozenset[str] = frozenset()
    """Those typical fields that no server accepts for another API; gateways pass some of the others on."""
    tool_fields: tuple[str, ...] = ()
    """Fields of a tool that no other API has."""
    tool_types: tuple[bytes, ...] = ()
    """Tool types that no other API has, as JSON."""
    roles: frozenset[str] = frozenset()
    """Message roles that no other API has."""
    certain_roles: frozenset[str] = frozenset()
    """Those of the roles that are never written by mistake."""
    has_tool_calls: bool = False
    """Calls are in a list ``tool_calls`` of a message."""
    message_fields: tuple[str, ...] = ()
    """Fields of a message that no other API has, among those that ``recognize`` looks at."""
    text_fields: frozenset[str] = frozenset()
    """Top-level fields that may be a text here, and are always an object in other APIs."""
    block_types: frozenset[str] = frozenset()
    """Block types that no other API has."""
    block_type_ends: tuple[str, ...] = ()
    """Endings of further such types."""
    certain_block_types: frozenset[str] = frozenset()
    """Block types that answers of no other API contain."""
    starts_with_system: bool = False
    """A system message may come first."""
    listed: ListSigns = ListSigns()
    model_name: str = ""
    """A part of its models' names, in lower case."""


class MessageShape(Struct, frozen=True):
    """The shape of a message, for the repair of damaged ones."""

    roles: tuple[str, ...]
    """Valid roles; among them an empty one if the role may be left out."""
    assistant_role: str = "assistant"
    content_field: str = "content"
    """The field with the content of a message."""
    text_types: tuple[str, str] = ("text", "text")
    """Types of a text block of the user and of the assistant; empty if blocks have no type."""
    foreign_call_types: frozenset[str] = frozenset()
    """Types of calls and results in other APIs, never a block of this one."""
    results_hold_media: bool = True
    """A result may hold media beside text."""
    can_show_media: Callable[[Media], bool] | None = None
    """Whether a user message can show a medium; None if it can show all."""
    has_error_flag: bool = True
    """A result can be flagged as an error."""
    image_url_is_object: bool = False
    """The address of an image is in an object."""


class BlockForms(Struct, frozen=True):
    """How this API writes the pieces of a message, to tell them from those of other APIs."""

    parsed_kinds: tuple[str, ...]
    """Kinds that its decoder understands; a part of such a kind that stayed opaque is malformed."""
    telling_kinds: tuple[str, ...]
    """Kinds that reveal a part of this API among those of another, such as a converter may leave behind."""
    more_refused_kinds: tuple[str, ...] = ()
    """Further kinds of opaque parts that it refuses, beside malformed ones and those of other APIs."""
    kinds_by_type: Mapping[str, str] = {}
    """Kind of content by type of the element."""
    later_kinds_by_type: Mapping[str, str] = {}
    """The same, for types that another API has too and converts better; consulted after every ``kinds_by_type``."""
    kinds_by_type_and_field: Mapping[tuple[str, str], str] = {}
    """The same, for types that others have too, with the field that is this API's own."""
    kinds_by_field: Mapping[str, str] = {}
    """Kind of content of an element without a type, by the field that holds an object."""
    built_in_type_ends: tuple[str, ...] = ()
    """Endings of the types of calls and results of built-in tools."""
    compaction_field: str = ""
    """The field that identifies a compaction as its own."""
    call_fields: Mapping[str, type] = {}
    """Fields of an answer that hold calls beside its content, and their type: a list or a mapping."""
    result_roles: tuple[str, ...] = ()
    """Roles of messages that are results."""
    own_message_fields: frozenset[str] = frozenset()
    """Fields beside the content that only this API reads."""
    own_roles: tuple[str, ...] = ()
    """Roles that some other APIs do not know."""
    takes_any_role: bool = False
    """A message is recognized by its content field, whatever its role."""
    writes_block_types: tuple[str, ...] = ()
    """Types of text and calls that reveal the API from the bytes of a block alone."""
    own_forms: Mapping[str, str] = {}
    """Its form of each kind of content, in words for messages to users."""
    is_own_tool: Callable[[Mapping[str, Any]], bool] = lambda _tool: False
    """Whether a function is declared in this API's form."""


class CompactionFormat(Struct, frozen=True):
    """How the provider of an API compacts a conversation itself."""

    min_threshold_tokens: int
    """The lowest threshold that the provider accepts, in input tokens."""
    build_threshold_fields: Callable[[int, str, bool], JsonObject]
    """Builds the fields for automatic compaction above a number of input tokens, from that number, instructions, and
    whether to stop after the compaction."""
    build_request: Callable[[Mapping[str, Raw], str, bool], NativeCompactionRequest]
    """Builds a request for a compaction alone, from the fields of a body, instructions, and whether to ask with a last
    message instead of at the compaction endpoint, where both exist."""
    wrap_block: Callable[[Raw], Raw]
    """Wraps a compaction as an element of the list of messages."""
    find_betas: Callable[[bytes], tuple[str, ...]] | None = None
    """Finds the beta features that the content of a body needs."""
    returns_history: bool = False
    """A compaction on demand returns the next list of messages, user messages included, and not one block."""


class BreakpointFormat(Struct, frozen=True):
    """How an API takes explicit cache breakpoints (``cache_control``) in a request.

    The functions work on the messages as ``encode_message`` and the log have them: a list of elements for each message.
    """

    place: Callable[[Mapping[str, Raw], list[list[JsonBytes]], PlanOptions], dict[str, bytes]]
    """Places the planned breakpoints on the messages of a body with these fields, in place, as many as the API takes
    beside those already there. Returns the fields beside the messages that got one."""
    keep_newest: Callable[[Mapping[str, Raw], list[list[JsonBytes]]], list[list[JsonBytes]]]
    """Drops the oldest breakpoints of the messages until the API takes those that are left, in a body with these
    fields."""
    strip: Callable[[list[list[JsonBytes]]], list[list[JsonBytes]]]
    """Drops all breakpoints of the messages."""


class ContainerFormat(Struct, frozen=True):
    """How requests of an API name the container in which code of the provider's waits for results."""

    read: Callable[[bytes], str]
    """Returns the id of the container that a body names, or an empty string."""
    name: Callable[[bytes, str, Collection[str]], bytes]
    """Returns a body that names the container of the last answer if code waits for the results in it, and none of those
    that are gone; the same object if nothing changes."""


class ApiSpec(Struct, frozen=True):
    """Everything that is known of an API."""

    api: str
    display_name: str
    """Its name as its provider writes it."""
    messages_field: str
    """The field with the list of messages."""
    decode_message: Callable[[JsonBytes], Message]
    """Decodes one element of the list, or one run of elements that form a message."""
    encode_message: Callable[[Message, Raw | None], list[bytes]]
    """Encodes a message as elements of the list; the second argument is the message it was edited from, if any."""
    setup_fields: tuple[str, ...]
    """Fields that precede the messages in the prompt, in the order in which the provider renders them."""
    max_tokens_paths: tuple[FieldPath, ...]
    """Fields of the output limit; the first is used for a body without a limit."""
    build_dialect: Callable[[str, str], Dialect]
    """Builds the rules for a model at a provider; an empty provider means that the model's name decides.

    ``refused_kinds`` stays empty, since it depends on all APIs; the registry adds it.
    """
    answers_module: str
    """The module with ``ANSWERS``, loaded on first use of ``answers``."""
    rules_module: str
    """The module with ``RULES``, loaded on first use of ``rules``."""
    options: OptionFormat
    errors: ErrorFormat
    endpoints: Endpoints
    signs: BodySigns
    shape: MessageShape
    blocks: BlockForms
    relax_dialect: Callable[[Dialect], Dialect] | None = None
    """Relaxes the rules for a message list that a client wrote for a server unknown to Holdfast."""
    system_fields: tuple[str, ...] = ()
    """The field of the system prompt and its other spellings, if it is not a message."""
    group_items: Callable[[Sequence[Raw]], list[MessageGroup]] | None = None
    """Decodes the whole list, if several elements may form one message."""
    to_list_bytes: Callable[[Raw], JsonBytes] | None = None
    """Returns the bytes of a message as elements of the list."""
    link_results: Callable[[Sequence[Message]], list[Message]] | None = None
    """Links results to calls by their order, if ids are optional."""
    adapt_outputs: Callable[[list[list[JsonBytes]]], list[list[JsonBytes]]] | None = None
    """Adapts newly encoded elements to each other, if the form of one depends on another."""
    compaction: CompactionFormat | None = None
    """How its provider compacts; None if it does not."""
    signed_part_types: tuple[type, ...] = ()
    """Types of parts that its provider signs; on other parts a signature is only the name of a field."""
    sealed_history_kinds: frozenset[str] = frozenset()
    """Kinds of opaque parts that hold a whole past in encrypted form."""
    element_name: str = "the message"
    """The name of a list element in error messages."""
    accepts_plain_text: bool = False
    """The list may be replaced by a plain string."""
    has_model_field: bool = True
    """The body names its model."""
    breakpoints: BreakpointFormat | None = None
    """How it takes explicit cache breakpoints (``cache_control``); None if it has none."""
    containers: ContainerFormat | None = None
    """How requests name the container in which code of the provider's waits for results; None if it has none."""
    tool_schemas: ToolSchemaFormat | None = None
    """Where it has the JSON Schemas of functions, and what it refuses in them; None if that is not known."""
    cache_option_fields: tuple[str, ...] = ()
    """Options that are no part of the prompt, but part the cache of its messages: another value reads nothing."""

    @property
    def supports_cache_control(self) -> bool:
        """Whether the client may set explicit cache breakpoints (``cache_control``)."""
        return self.breakpoints is not None

    @property
    def answers(self) -> AnswerFormat:
        """The format of its answers.

        Loaded on first use: planning does not need it, and the error rules behind it take longer to load than
        everything else here.
        """
        answers: AnswerFormat = _load_value(self.answers_module, "ANSWERS")
        return answers

    @property
    def rules(self) -> RuleSet:
        """The rules of the validator, loaded on first use since only ``lint``, ``fix`` and tests need them."""
        rules: RuleSet = _load_value(self.rules_module, "RULES")
        return rules


@cache
def _load_value(module: str, name: str) -> Any:
    return getattr(import_module(module), name)
