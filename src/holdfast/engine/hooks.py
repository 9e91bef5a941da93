"""Hooks: what authors may have a say in. One that raises, hangs, or returns something else is told, and left out.

A hook is a plain function, which runs in a thread of its own, or an ``async def``; one call of it has ``patience``
seconds. It is given values that nobody can change, so whatever becomes of it the session goes on as without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol, TypeAlias, TypeVar

from anyio import create_task_group, move_on_after, to_thread
from msgspec import Struct

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.events import CompactionEnded, EventListener, HookFailed, RequestRefused
from holdfast.messages.message import Message
from holdfast.state.codec.packing import describe_type_mismatch

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""What a plain function returns, or an ``async def``."""

HOOK_TIMEOUT = 10.0
"""Seconds that one call of a hook may take. [H]"""
_ACTIVE_HOOKS: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("holdfast_hooks", default=())
"""The hooks that this task is the work of."""


class BeforeCompactionResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``before_compaction`` wants. With nothing in it the compaction goes its way."""

    extra_context: tuple[str, ...] = ()
    """Texts that the summariser sees beside the messages."""
    prompt: str = ""
    """Words that replace the summariser's own."""
    summary: str = ""
    """The summary itself: no model is asked for one."""
    cancel: bool = False
    """No compaction now; the request goes on without, where it can."""


class BeforeCompaction(Protocol):
    """Called once before each compaction that somebody could write a summary for."""

    def __call__(self, head: Sequence[Message], reason: str, /) -> MaybeAwaitable[BeforeCompactionResult | None]:
        """Return what is wanted of the compaction of ``head``; ``reason`` is ``auto``, ``manual`` or ``overflow``."""


class TransformMessages(Protocol):
    """Called for each request, and again for each attempt at it."""

    def __call__(self, messages: Sequence[Message], /) -> MaybeAwaitable[Sequence[Message] | None]:
        """Return what this request says in place of ``messages``, or nothing; the log keeps what was said.

        A message that is returned as it was given keeps its bytes. The rules of the API are the hook's to keep.
        """


class AfterCompaction(Protocol):
    """Called when a compaction ended, whatever came of it."""

    def __call__(self, event: CompactionEnded, /) -> MaybeAwaitable[object]:
        """See what became of it; what is returned is not looked at."""


class OnOverflow(Protocol):
    """Called when a request was refused as too large, before anything is done about it."""

    def __call__(self, event: RequestRefused, /) -> MaybeAwaitable[object]:
        """See what was refused; what is returned is not looked at."""


class OnAppend(Protocol):
    """Called for each message that is handed in as one, before it is in the log; not for whole bodies and answers."""

    def __call__(self, message: Message, /) -> MaybeAwaitable[Message | None]:
        """Return the message to append in place of ``message``, or nothing to leave it."""


class AutoContinue(Protocol):
    """Called where the window cut an answer, or a compaction a turn, before the model is told to go on."""

    def __call__(self) -> MaybeAwaitable[bool | None]:
        """Return ``False`` to have nothing added."""


class Hooks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hooks of an engine, each a plain function, an ``async def``, or nothing; ``ConfigError`` for others."""

    before_compaction: BeforeCompaction | None = None
    """May add context, replace the prompt, supply the summary, or cancel."""
    transform_messages: TransformMessages | None = None
    """May show one request other messages."""
    after_compaction: AfterCompaction | None = None
    """Sees what became of a compaction."""
    on_overflow: OnOverflow | None = None
    """Sees what was refused as too large."""
    on_append: OnAppend | None = None
    """May put another message in place of one that is said."""
    auto_continue: AutoContinue | None = None
    """Says whether the work goes on by itself where the window cut an answer, or a compaction a turn."""
    timeout: float = HOOK_TIMEOUT
    """Seconds that one call may take."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hook = getattr(self, name)
            if name != "timeout" and hook is not None and not callable(hook):
                raise ConfigError(f"the hook {name} is {type(hook).__name__}, which cannot be called; give a function")
        raise_if_wrong_type(ConfigError, timeout=(self.timeout, float | int))
        if not self.timeout >= 0:
            raise ConfigError(f"timeout is {self.timeout}; give the seconds that one call of a hook may take")


async def run_hook(
    hooks: Hooks,
    name: str,
    *arguments: Any,
    listener: EventListener,
    session: str = "",
    timeout: float | None = None,  # noqa: ASYNC109
) -> Any:
    """Return what the hook called ``name`` says to ``arguments``, or nothing: where there is none, and where it fails.

    A failure (it raised, took longer than ``timeout``, or returned what it may not) is told once, as ``HookFailed``.
    For what a hook does itself, with the session, it is not called again: that would have no end.
    """
    hook: Callable[..., Any] | None = getattr(hooks, name)
    if hook is None or hook in _ACTIVE_HOOKS.get():
        return None
    result, why = await _call_isolated(hook, arguments, hooks.timeout if timeout is None else timeout)
    why = why or _find_result_problem(name, result, arguments)
    if not why:
        return result if name in _RESULT_TYPES else None
    listener(HookFailed(session, name, f"{why}; the session went on without it"))
    return None


async def _call_isolated(hook: Callable[..., Any], arguments: Sequence[Any], patience: float) -> tuple[Any, str]:
    """Return what ``hook`` returned, or nothing and why; a task of its own keeps what it cancels to itself."""
    results: list[tuple[Any, str]] = []

    async def run() -> None:
        _ACTIVE_HOOKS.set((*_ACTIVE_HOOKS.get(), hook))
        try:
            results.append(await _call_hook_function(hook, arguments, patience))
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a hook raises, the session goes on
            results.append((None, _describe_exception(error)))

    with move_on_after(patience) as scope:
        async with create_task_group() as group:
            group.start_soon(run)
    if results:
        return results[0]
    return None, _describe_timeout(patience) if scope.cancelled_caught else "it cancelled itself"


async def _call_hook_function(hook: Callable[..., Any], arguments: Sequence[Any], patience: float) -> tuple[Any, str]:
    if iscoroutinefunction(hook):
        return await hook(*arguments), ""
    result, why = await to_thread.run_sync(_call_in_thread, partial(hook, *arguments), patience, abandon_on_cancel=True)
    return (await result if isawaitable(result) else result), why


def _call_in_thread(hook: Callable[[], Any], patience: float) -> tuple[Any, str]:
    """Return what ``hook`` returns, or why nothing, from a thread that keeps no program from ending should it hang."""
    result_queue: SimpleQueue[tuple[Any, str]] = SimpleQueue()

    def run() -> None:
        try:
            result_queue.put((hook(), ""))
        except BaseException as error:  # noqa: BLE001 -- as above; nobody else sees it
            result_queue.put((None, _describe_exception(error)))

    Thread(target=copy_context().run, args=(run,), name="holdfast-hook", daemon=True).start()
    try:
        return result_queue.get(timeout=patience)
    except Empty:
        return None, _describe_timeout(patience)


def _describe_exception(error: BaseException) -> str:
    try:
        return f"it raised {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- an error that cannot even be told
        return f"it raised {type(error).__name__}"


def _describe_timeout(patience: float) -> str:
    return f"it took longer than {patience:g} s"


_RESULT_TYPES: dict[str, Any] = {
    "before_compaction": BeforeCompactionResult,
    "transform_messages": tuple[Message, ...],
    "on_append": Message,
    "auto_continue": bool,
}
"""What hooks return whose result is looked at; each may return nothing."""


def _find_result_problem(name: str, result: object, arguments: Sequence[Any]) -> str:
    """Return how ``result`` is not what the hook may return, or nothing."""
    if result is None or name not in _RESULT_TYPES:
        return ""
    if name == "transform_messages":
        return _find_messages_problem(result, arguments[0])
    return _find_type_problem(result, _RESULT_TYPES[name])


def _find_messages_problem(result: object, messages: Sequence[Message]) -> str:
    if not isinstance(result, list | tuple):
        return f"it returned {type(result).__name__} instead of a list of messages"
    if not result:
        return "it returned no message at all"
    message_ids = {id(message) for message in messages}
    return next(filter(None, (_find_type_problem(item, Message) for item in result if id(item) not in message_ids)), "")


def _find_type_problem(value: object, kind: type) -> str:
    if type(value) is not kind:
        return f"it returned {type(value).__name__} instead of {kind.__name__}"
    why = describe_type_mismatch(value, kind)
    return f"it returned a {kind.__name__} that is none: {why}" if why else ""
