"""What every adapter lets its user choose, how it names conversations, and the histories that it keeps open."""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from threading import Lock
from typing import Any, TypeAlias

from holdfast.errors import ConfigError, HoldfastError, raise_if_wrong_type
from holdfast.events import Event
from holdfast.integrations.common.agent_history import AgentHistory
from holdfast.planning.pipeline import Policy
from holdfast.store.base import SessionStore
from holdfast.store.location import locate_store
from holdfast.store.open_store import open_store
from holdfast.telemetry.switch import load_telemetry

MAX_OPEN_HISTORIES = 256
"""Conversations that are kept open; those of the others are read from the log again. Chosen by judgement."""
StoreChoice: TypeAlias = SessionStore | str | os.PathLike[str] | None
"""A store, or the path of one; None is the one of the command line."""
Listener: TypeAlias = Callable[[Event], None]
"""Is called with each event of ``holdfast.events``."""
OUTPUT_LIMIT_NAMES = ("max_output_tokens", "max_completion_tokens", "max_tokens", "max_new_tokens", "num_predict")
"""What the APIs and the frameworks call the most tokens that an answer may have."""
_LOG = logging.getLogger("holdfast.integrations")


class AgentHistories:
    """The conversations of the agents that one adapter serves, in one store.

    ``store`` is a store, or the path of one; by default that of the command line, so that ``holdfast ls``, ``stats``
    and ``recall`` know the conversations. Both ``listener``, which is the user's, and ``tell_framework``, with which an
    adapter passes events on to the callbacks or the traces of its framework, are called with each event in the context
    of the model call that it belongs to, so what a framework keeps in context variables (the ids of the current trace
    and span, say) can be asked for there.
    """

    def __init__(
        self,
        store: StoreChoice = None,
        policy: Policy = Policy(),
        listener: Listener | None = None,
        tell_framework: Listener | None = None,
    ) -> None:
        """Raise ``ConfigError`` for a policy or a listener of another type: later it would cost the agent our help.

        So it does if ``HOLDFAST_TELEMETRY`` asks for spans and metrics, and OpenTelemetry is not installed.
        """
        raise_if_wrong_type(ConfigError, policy=(policy, Policy))
        if listener is not None and not callable(listener):
            raise ConfigError(f"listener is of type {type(listener).__name__}; give a function, or None")
        self._store = store
        self._policy = policy
        self._listener = listener
        self._tell_framework = tell_framework
        self._telemetry = load_telemetry()
        self._lock = Lock()
        self._open_store: SessionStore | None = None
        self._histories: OrderedDict[str, AgentHistory] = OrderedDict()
        """By key; the one used last is last."""
        self._told: set[str] = set()
        """Problems that the log of this process has been told."""

    def open(self, key: str) -> AgentHistory:
        """Return the conversation called ``key``. Raises ``StoreError`` if the store cannot be opened."""
        with self._lock:
            history = self._histories.pop(key, None)
            if history is None:
                history = AgentHistory(
                    self._get_store(), key, self._policy, self._make_listener(), self._reopen_store, self._telemetry
                )
            self._histories[key] = history
            while len(self._histories) > MAX_OPEN_HISTORIES:
                self._histories.popitem(last=False)
            return history

    def answer_recall(self, key: str, arguments: str | Mapping[str, Any]) -> str:
        """Return the result of the model's call of the tool ``recall`` in the conversation called ``key``."""
        try:
            history = self.open(key)
        except HoldfastError as error:
            # The model reads it, and the agent goes on.
            return str(error)
        return history.answer_recall(arguments)

    @contextmanager
    def keep_agent_running(self) -> Iterator[None]:
        """Catch whatever goes wrong on our side inside this block, and warn once: the agent goes on as without us.

        What the agent gets then is what the caller has before the block: the whole history, or the provider's error.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- a framework would end the run for any error of ours
            self.warn_once(error)

    def warn_once(self, error: Exception) -> None:
        """Log that Holdfast could not help, once for each problem: the agent goes on as without it.

        What is wrong with settings is a problem for each of them; of other errors, whose texts may have numbers, the
        first of each kind is told.
        """
        kind = type(error).__name__
        problem = f"{kind}: {error}" if isinstance(error, ConfigError) else kind
        if problem not in self._told:
            self._told.add(problem)
            _LOG.warning("the agent goes on without Holdfast's help: %s: %s", kind, error)

    def _make_listener(self) -> Listener | None:
        """Return what a conversation calls with its events; None if nobody listens."""
        if self._tell_framework is None and self._listener is None:
            return None
        return self._emit_event

    def _emit_event(self, event: Event) -> None:
        """Give ``event`` to the framework and to the user's listener; a listener that raises gets no more."""
        if self._tell_framework is not None:
            with self.keep_agent_running():
                self._tell_framework(event)
        if self._listener is not None:
            try:
                self._listener(event)
            except Exception as error:  # noqa: BLE001 -- whatever a listener does, the agent goes on
                self._listener = None
                _LOG.warning("the listener raised %s: %s; it gets no more events: fix it", type(error).__name__, error)

    def _reopen_store(self, replaced_store: SessionStore) -> SessionStore:
        """Return the store at the user's path once more; ``replaced_store`` if the user gave a store and no path."""
        with self._lock:
            is_by_path = self._store is None or isinstance(self._store, str | os.PathLike)
            if is_by_path and self._open_store is replaced_store:
                self._open_store = None
            return self._get_store()

    def _get_store(self) -> SessionStore:
        if self._open_store is None:
            if isinstance(self._store, str | os.PathLike):
                self._open_store = open_store(self._store)
            elif self._store is None:
                self._open_store = open_store(locate_store().url)
            else:
                self._open_store = self._store
        return self._open_store


def make_conversation_key(framework: str, *names: str) -> str:
    """Return the key under which the log of a conversation is stored, from the names that tell it from others.

    A digest, since the names may be the user's words. Which names those are decides who can read whose texts.
    """
    texts = [name.encode("utf-8", "surrogatepass") for name in names]
    # With their lengths, so that no name can run into the next.
    source = b"".join(b"%d:%b" % (len(text), text) for text in texts)
    return f"{framework}-{blake2b(source, digest_size=8).hexdigest()}"


def check_window(window: int | None) -> int | None:
    """Return the window that the user gave. Raises ``ConfigError`` if that is no number of tokens."""
    raise_if_wrong_type(ConfigError, window=(window, int | None))
    if window is not None and window < 1:
        raise ConfigError(f"window is {window} tokens; give 1 or more, or None for what is known of the model")
    return window


def find_output_limit(*settings: object) -> int | None:
    """Return the most tokens that an answer may have: what the first of ``settings`` says that says anything.

    Each is a mapping with the options of a call or of a model, or an object with attributes of their names.
    """
    for choices in settings:
        for name in OUTPUT_LIMIT_NAMES:
            limit = choices.get(name) if isinstance(choices, Mapping) else getattr(choices, name, None)
            if isinstance(limit, int) and limit > 0:
                return limit
    return None


def find_api(model: object, apis_by_class: Mapping[str, str], default: str = "openai-chat") -> str:
    """Return the API of a framework's model, by the name of its class or of the nearest base that is listed."""
    for base in type(model).__mro__:
        if base.__name__ in apis_by_class:
            return apis_by_class[base.__name__]
    return default
