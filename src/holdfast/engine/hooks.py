"""Hooks: functions of the program that observe or change the work of a session.

A hook is a plain function, which runs in a thread of its own, or an ``async def``; one call may take ``Hooks.timeout``
seconds. Its arguments are immutable. A hook that raises, hangs or returns a wrong value is reported as ``HookFailed``,
and the session goes on as if it had not been called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from anyio import create_task_group, move_on_after, to_thread
from msgspec import Struct

from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.events import CompactionEnded, EventListener, HookFailed, RequestRefused
from holdfast.messages.message import Message
from holdfast.state.codec.packing import describe_type_mismatch

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
"""The result of a plain function, or of an ``async def``."""

# A hook is on the way of every request, whose user waits. Long enough for a look-up over the network; a hook that asks
# a model for a summary needs more. Chosen by judgement.
HOOK_TIMEOUT = 10.0
"""Seconds that one call of a hook may take."""
_ACTIVE_HOOKS: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("holdfast_hooks", default=())
"""The hooks that the current task is running inside of."""


class BeforeCompactionResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes that ``before_compaction`` makes to a compaction; an empty one changes nothing."""

    extra_context: tuple[str, ...] = ()
    """Texts shown to the summarizer beside the messages."""
    prompt: str = ""
    """A prompt in place of the summarizer's own."""
    summary: str = ""
    """The summary itself; no model is asked for one."""
    cancel: bool = False
    """Whether to make no compaction now; the request is sent without one if it fits."""


class BeforeCompaction(Protocol):
    """Called once before each compaction for which a summary can be written."""

    def __call__(self, head: Sequence[Message], reason: str, /) -> MaybeAwaitable[BeforeCompactionResult | None]:
        """Return changes to the compaction of ``head``, or None; ``reason`` is ``auto``, ``manual`` or ``overflow``."""


class TransformMessages(Protocol):
    """Called for each attempt at a request."""

    def __call__(self, messages: Sequence[Message], /) -> MaybeAwaitable[Sequence[Message] | None]:
        """Return the messages that this attempt sends in place of ``messages``, or None to leave them.

        The log is not changed. A message that is returned as the same object keeps its bytes. The result has to keep
        the rules of the API.
        """


class AfterCompaction(Protocol):
    """Called when a compaction ended, with any outcome."""

    def __call__(self, event: CompactionEnded, /) -> MaybeAwaitable[object]:
        """Observe the outcome; the result is ignored."""


class OnOverflow(Protocol):
    """Called when a request was refused as too large, before recovery begins."""

    def __call__(self, event: RequestRefused, /) -> MaybeAwaitable[object]:
        """Observe the refusal; the result is ignored."""


class OnAppend(Protocol):
    """Called for each single message before it is appended; not for whole bodies, and not for answers."""

    def __call__(self, message: Message, /) -> MaybeAwaitable[Message | None]:
        """Return the message to append in place of ``message``, or None to leave it."""


class AutoContinue(Protocol):
    """Called before the model is told to continue, because the window cut its answer or a compaction its turn."""

    def __call__(self) -> MaybeAwaitable[bool | None]:
        """Return False to prevent that."""


class Hooks(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hooks of an engine, each a plain function, an ``async def``, or None.

    Raises ``ConfigError`` for anything else.
    """

    before_compaction: BeforeCompaction | None = None
    """May add context, replace the prompt, supply the summary, or cancel."""
    transform_messages: TransformMessages | None = None
    """May change the messages of one attempt."""
    after_compaction: AfterCompaction | None = None
    """Observes the outcome of a compaction."""
    on_overflow: OnOverflow | None = None
    """Observes a request that was refused as too large."""
    on_append: OnAppend | None = None
    """May replace a message before it is appended."""
    auto_continue: AutoContinue | None = None
    """May prevent that the model is told to continue a cut answer or turn."""
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
    """Call the hook ``name`` and return its result, or None if there is no such hook, or it fails.

    A hook fails if it raises, takes longer than ``timeout`` seconds, or returns a wrong value; ``listener`` is then
    called with a ``HookFailed``. A hook that uses the session is not called for its own work: that would never end.
    """
    hook: Callable[..., Any] | None = getattr(hooks, name)
    if hook is None or hook in _ACTIVE_HOOKS.get():
        return None
    result, problem = await _call_isolated(hook, arguments, hooks.timeout if timeout is None else timeout)
    problem = problem or _find_result_problem(name, result, arguments)
    if problem:
        listener(HookFailed(session, name, f"{problem}; the session continued without it"))
        return None
    return result if name in _RESULT_TYPES else None


class _HookResult(NamedTuple):
    """The result of one call, and a description of the failure if it failed."""

    value: Any
    problem: str = ""


async def _call_isolated(hook: Callable[..., Any], arguments: Sequence[Any], timeout: float) -> _HookResult:  # noqa: ASYNC109
    """Call ``hook`` in a task of its own, so that a cancellation that it causes stays inside of that task."""
    results: list[_HookResult] = []

    async def run() -> None:
        _ACTIVE_HOOKS.set((*_ACTIVE_HOOKS.get(), hook))
        try:
            results.append(await _call_hook_function(hook, arguments, timeout))
        except (Exception, SystemExit) as error:  # noqa: BLE001 -- whatever a hook raises, the session goes on
            results.append(_HookResult(None, _describe_exception(error)))

    with move_on_after(timeout) as scope:
        async with create_task_group() as group:
            group.start_soon(run)
    if results:
        return results[0]
    return _HookResult(None, _describe_timeout(timeout) if scope.cancelled_caught else "it cancelled itself")


async def _call_hook_function(hook: Callable[..., Any], arguments: Sequence[Any], timeout: float) -> _HookResult:  # noqa: ASYNC109
    if iscoroutinefunction(hook):
        return _HookResult(await hook(*arguments))
    result = await to_thread.run_sync(_call_in_thread, partial(hook, *arguments), timeout, abandon_on_cancel=True)
    if isawaitable(result.value):  # a plain function that returns a coroutine
        return _HookResult(await result.value, result.problem)
    return result


def _call_in_thread(hook: Callable[[], Any], timeout: float) -> _HookResult:
    """Call ``hook`` in a daemon thread: if it hangs, it does not keep the program from ending."""
    results: SimpleQueue[_HookResult] = SimpleQueue()

    def run() -> None:
        try:
            results.put(_HookResult(hook()))
        except BaseException as error:  # noqa: BLE001 -- nothing above this thread would see it
            results.put(_HookResult(None, _describe_exception(error)))

    Thread(target=copy_context().run, args=(run,), name="holdfast-hook", daemon=True).start()
    try:
        return results.get(timeout=timeout)
    except Empty:
        return _HookResult(None, _describe_timeout(timeout))


def _describe_exception(error: BaseException) -> str:
    try:
        return f"it raised {type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- an error whose own text raises
        return f"it raised {type(error).__name__}"


def _describe_timeout(timeout: float) -> str:
    return f"it took longer than {timeout:g} s"


_RESULT_TYPES: dict[str, Any] = {
    "before_compaction": BeforeCompactionResult,
    "transform_messages": tuple[Message, ...],
    "on_append": Message,
    "auto_continue": bool,
}
"""Result types of the hooks whose result counts; each may also return None."""


def _find_result_problem(name: str, result: object, arguments: Sequence[Any]) -> str:
    """Return a description of what is wrong with ``result``, or "" if nothing is."""
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
    # Messages that were handed in are right: only new ones are checked, which spares a check of the whole history.
    message_ids = {id(message) for message in messages}
    for item in result:
        if id(item) not in message_ids:
            problem = _find_type_problem(item, Message)
            if problem:
                return problem
    return ""


def _find_type_problem(value: object, kind: type) -> str:
    if type(value) is not kind:
        return f"it returned {type(value).__name__} instead of {kind.__name__}"
    mismatch = describe_type_mismatch(value, kind)
    return f"it returned an invalid {kind.__name__}: {mismatch}" if mismatch else ""
