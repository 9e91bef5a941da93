"""``HoldfastProxy``: a proxy for the agents of a program, and the options that make them use it."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from claude_agent_sdk import ClaudeAgentOptions

from holdfast.config import load_configuration
from holdfast.config.providers import ADDRESS_VARIABLES
from holdfast.engine.session import Report
from holdfast.errors import HoldfastError
from holdfast.events import EventListener
from holdfast.integrations.claude_agent_sdk.client_options import add_recall, find_bypass, find_gateway, point_at_proxy
from holdfast.integrations.claude_agent_sdk.proxy_thread import ProxyThread
from holdfast.integrations.claude_agent_sdk.recall_server import RecallServer
from holdfast.integrations.claude_agent_sdk.running_proxy import find_running_proxy, is_url_at, make_token_header
from holdfast.integrations.claude_agent_sdk.stored_sessions import StoredSessions
from holdfast.integrations.common.options import check_window
from holdfast.proxy.settings import load_proxy_settings
from holdfast.store.location import locate_store

HEADERS_VARIABLE = "ANTHROPIC_CUSTOM_HEADERS"
"""Extra headers of Claude Code's requests, one per line."""
_LOG = logging.getLogger("holdfast.integrations")


class HoldfastProxy:
    """A proxy of Holdfast for the length of a ``with`` or ``async with`` block, for any number of agents.

    ``window`` is the most tokens that a conversation may have, by default what the catalogue says of the model.
    ``policy`` is the name of a policy. ``store`` is the path of the store that conversations are recorded in, by
    default the one of the command line (``:memory:`` for one that is gone after the block). ``listener`` is called with
    the events of ``holdfast.events``, in the proxy's thread.

    If the proxy cannot start, the agents work as without it, and the log says so.
    """

    def __init__(
        self,
        *,
        window: int | None = None,
        policy: str | None = None,
        store: str | os.PathLike[str] | None = None,
        listener: EventListener | None = None,
    ) -> None:
        self._window = check_window(window)
        self._policy = policy
        self._store = store
        self._listener = listener
        self._cleanup = ExitStack()
        self._has_own_upstream = False
        self._sessions: StoredSessions | None = None
        self._told: set[str] = set()
        self.url = ""
        """The proxy's address; empty before the block and where it could not start."""

    # -- the block -----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the proxy and wait until it answers. Raises ``ConfigError`` for settings that are impossible."""
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the proxy, once answers under way are recorded."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def __enter__(self) -> Self:
        """Start the proxy and wait until it answers. Raises ``ConfigError`` for settings that are impossible."""
        configuration = load_configuration()
        overrides: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": 0,
            "token": "",
            "window": self._window,
            "policy": self._policy,
        }
        # The variables with addresses are the client's: its requests carry them in their paths.
        environment = {name: value for name, value in os.environ.items() if name not in ADDRESS_VARIABLES}
        settings = load_proxy_settings(environment, configuration.proxy, overrides)
        configuration.build_policy(settings.policy)
        store = self._locate_store()
        self._has_own_upstream = "anthropic" in configuration.proxy
        thread = ProxyThread(settings, configuration, store, self._listener)
        try:
            self.url = thread.start()
        except (HoldfastError, OSError) as error:
            self._warn_once("start", f"the proxy cannot start, so agents go on without it: {error}")
        self._cleanup.callback(thread.stop)
        self._sessions = StoredSessions(store)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the proxy, once answers under way are recorded."""
        self.url = ""
        self._sessions = None
        self._cleanup.close()

    def _locate_store(self) -> str:
        if self._store is None:
            return locate_store().url
        if os.fspath(self._store) == ":memory:":
            # The proxy and its readers open the store each for themselves, so it has to have a path.
            folder = self._cleanup.enter_context(TemporaryDirectory(prefix="holdfast-", ignore_cleanup_errors=True))
            return str(Path(folder, "holdfast.db"))
        return os.fspath(self._store)

    # -- the agents ----------------------------------------------------------------------------------------------------

    def configure(self, options: ClaudeAgentOptions | None = None) -> ClaudeAgentOptions:
        """Return ``options`` for an agent whose requests go through the proxy, with the tool ``recall``.

        Environment, headers, hooks, servers, sub-agents, ``resume`` and ``fork_session`` stay as they are. An address
        of your own (``ANTHROPIC_BASE_URL`` in ``env``, in the settings or in the environment) is where the proxy sends
        the requests. If that is a Holdfast proxy itself, which ``holdfast enable`` started, the agent uses that one:
        behind two its requests would be reduced twice.
        """
        options = options or ClaudeAgentOptions()
        if not self.url or self._sessions is None:
            return options
        try:
            if bypass := find_bypass(options):
                self._warn_once("bypass", f"requests of Claude Code bypass the proxy: {bypass}")
            gateway = find_gateway(options)
            running_proxy = None
            if gateway.url and not is_url_at(gateway.url, self.url):
                running_proxy = find_running_proxy(gateway.url)
            if running_proxy is not None:
                pointed_options = _send_token(options, running_proxy.token)
            else:
                pointed_options = point_at_proxy(options, self.url, has_own_upstream=self._has_own_upstream)
        except HoldfastError as error:
            self._warn_once("options", f"the agent goes on without the proxy: {error}")
            return options
        try:
            return add_recall(pointed_options, RecallServer(self._sessions))
        except HoldfastError as error:
            self._warn_once("recall", f"the model cannot read back what it is not shown any more: {error}")
            return pointed_options

    def get_report(self, session_id: str, agent_id: str = "") -> Report | None:
        """Return how full the context of a session is as of its newest request; None if none was recorded.

        ``session_id`` is that of the messages of the SDK, ``agent_id`` that of a sub-agent. Raises ``StoreError`` if
        the store cannot be read.
        """
        return None if self._sessions is None else self._sessions.get_report(session_id, agent_id)

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            _LOG.warning("holdfast: %s", text)


def _send_token(options: ClaudeAgentOptions, token: str) -> ClaudeAgentOptions:
    """Return ``options`` with the token of a running proxy beside the user's own headers."""
    if not token:
        return options
    own_lines = options.env.get(HEADERS_VARIABLE) or os.environ.get(HEADERS_VARIABLE, "")
    header_lines = [line for line in (own_lines, make_token_header(token)) if line]
    return replace(options, env={**options.env, HEADERS_VARIABLE: "\n".join(header_lines)})
