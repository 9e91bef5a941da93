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

from holdfast.errors import ConfigError, check_types
from holdfast.events import Compacted, HookFailed, Listener, Refused
from holdfast.messages.message import Message
from holdfast.state.codec.packing import fault

T = TypeVar("T")
Either: TypeAlias = T | Awaitable[T]
"""What a plain function returns, or an ``async def``."""

PATIENCE = 10.0
"""Seconds that one call of a hook may take. [H]"""
_WITHIN: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("holdfast_hooks", default=())
"""The hooks that this task is the work of."""


class Before(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ``before_compaction`` wants. With nothing in it the compaction goes its way."""

    add: tuple[str, ...] = ()
    """Texts that the summariser sees beside the messages."""
    prompt: str = ""
    """Words that replace the summariser's own."""
    summary: str = ""
    """The summary itself: no model is asked for one."""
    cancel: bool = False
    """No compaction now; the request goes on without, where it can."""


class BeforeCompaction(Protocol):
    """Called once before each compaction that somebody could write a summary for."""

    def __call__(self, head: Sequence[Message], reason: str, /) -> Either[Before | None]:
        """Return what is wanted of the compaction of ``head``; ``reason`` is ``auto``, ``manual`` or ``overflow``."""


class TransformMessages(Protocol):
    """Called for each request, and again for each attempt at it."""

    def __call__(self, messages: Sequence[Message], /) -> Either[Sequence[Message] | None]:
        """Return what this request says in place of ``messages``, or nothing; the log keeps what was said.

        A message that is returned as it was given keeps its bytes. The rules of the API are the hook's to keep.
        """


class AfterCompaction(Protocol):
    """Called when a compaction ended, whatever came of it."""

    def __call__(self, compacted: Compacted, /) -> Either[object]:
        """See what became of it; what is returned is not looked at."""


class OnOverflow(Protocol):
    """Called when a request was refused as too large, before anything is done about it."""

    def __call__(self, refused: Refused, /) -> Either[object]:
        """See what was refused; what is returned is not looked at."""


class OnAppend(Protocol):
    """Called for each message that is handed in as one, before it is in the log; not for whole bodies and answers."""

    def __call__(self, message: Message, /) -> Either[Message | None]:
        """Return the message to append in place of ``message``, or nothing to leave it."""


class AutoContinue(Protocol):
    """Called where the window cut an answer, or a compaction a turn, before the model is told to go on."""

    def __call__(self) -> Either[bool | None]:
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
    autocontinue: AutoContinue | None = None
    """Says whether the work goes on by itself where the window cut an answer, or a compaction a turn."""
    patience: float = PATIENCE
    """Seconds that one call may take."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hook = getattr(self, name)
            if name != "patience" and hook is not None and not callable(hook):
                raise ConfigError(f"the hook {name} is {type(hook).__name__}, which cannot be called; give a function")
        check_types(ConfigError, patience=(self.patience, float | int))
        if not self.patience >= 0:
            raise ConfigError(f"patience is {self.patience}; give the seconds that one call of a hook may take")


async def called(
    hooks: Hooks, name: str, *given: Any, tell: Listener, session: str = "", patience: float | None = None
) -> Any:
    """Return what the hook called ``name`` says to ``given``, or nothing: where there is none, and where it fails.

    A failure (it raised, took longer than ``patience``, or returned what it may not) is told once, as ``HookFailed``.
    For what a hook does itself, with the session, it is not called again: that would have no end.
    """
    hook: Callable[..., Any] | None = getattr(hooks, name)
    if hook is None or hook in _WITHIN.get():
        return None
    result, why = await _isolated(hook, given, hooks.patience if patience is None else patience)
    why = why or _wrong(name, result, given)
    if not why:
        return result if name in _WANTED else None
    tell(HookFailed(session, name, f"{why}; the session went on without it"))
    return None


async def _isolated(hook: Callable[..., Any], given: Sequence[Any], patience: float) -> tuple[Any, str]:
    """Return what ``hook`` returned, or nothing and why; a task of its own keeps what it cancels to itself."""
    told: list[tuple[Any, str]] = []

    async def run() -> None:
        _WITHIN.set((*_WITHIN.get(), hook))
        try:
            told.append(await _returned(hook, given, patience))
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a hook raises, the session goes on
            told.append((None, _raised(error)))

    with move_on_after(patience) as scope:
        async with create_task_group() as group:
            group.start_soon(run)
    if told:
        return told[0]
    return None, _late(patience) if scope.cancelled_caught else "it cancelled itself"


async def _returned(hook: Callable[..., Any], given: Sequence[Any], patience: float) -> tuple[Any, str]:
    if iscoroutinefunction(hook):
        return await hook(*given), ""
    result, why = await to_thread.run_sync(_in_thread, partial(hook, *given), patience, abandon_on_cancel=True)
    return (await result if isawaitable(result) else result), why


def _in_thread(hook: Callable[[], Any], patience: float) -> tuple[Any, str]:
    """Return what ``hook`` returns, or why nothing, from a thread that keeps no program from ending should it hang."""
    ended: SimpleQueue[tuple[Any, str]] = SimpleQueue()

    def run() -> None:
        try:
            ended.put((hook(), ""))
        except BaseException as error:  # noqa: BLE001 -- as above; nobody else sees it
            ended.put((None, _raised(error)))

    Thread(target=copy_context().run, args=(run,), name="holdfast-hook", daemon=True).start()
    try:
        return ended.get(timeout=patience)
    except Empty:
        return None, _late(patience)


def _raised(error: BaseException) -> str:
    try:
        return f"it raised {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- an error that cannot even be told
        return f"it raised {type(error).__name__}"


def _late(patience: float) -> str:
    return f"it took longer than {patience:g} s"


_WANTED: dict[str, Any] = {
    "before_compaction": Before,
    "transform_messages": tuple[Message, ...],
    "on_append": Message,
    "autocontinue": bool,
}
"""What hooks return whose result is looked at; each may return nothing."""


def _wrong(name: str, result: object, given: Sequence[Any]) -> str:
    """Return how ``result`` is not what the hook may return, or nothing."""
    if result is None or name not in _WANTED:
        return ""
    if name == "transform_messages":
        return _wrong_messages(result, given[0])
    return _wrong_type(result, _WANTED[name])


def _wrong_messages(result: object, given: Sequence[Message]) -> str:
    if not isinstance(result, list | tuple):
        return f"it returned {type(result).__name__} instead of a list of messages"
    if not result:
        return "it returned no message at all"
    known = {id(message) for message in given}
    return next(filter(None, (_wrong_type(one, Message) for one in result if id(one) not in known)), "")


def _wrong_type(value: object, kind: type) -> str:
    if type(value) is not kind:
        return f"it returned {type(value).__name__} instead of {kind.__name__}"
    why = fault(value, kind)
    return f"it returned a {kind.__name__} that is none: {why}" if why else ""
