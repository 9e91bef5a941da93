"""Point the options of an agent at a proxy: its address, the tool ``recall``, everything else as the user has it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from claude_agent_sdk import AgentDefinition, ClaudeAgentOptions, HookMatcher

from holdfast.config.addresses import make_no_proxy_variables
from holdfast.config.providers import PROVIDERS
from holdfast.errors import ConfigError
from holdfast.integrations.claude_agent_sdk.recall_server import RECALL_TOOL, SERVER_NAME, RecallServer
from holdfast.integrations.claude_agent_sdk.running_proxy import (
    BASE_URL_VARIABLE,
    get_settings_url,
    is_url_at,
    read_settings_file,
    read_user_settings_url,
)

ANTHROPIC_URL = PROVIDERS["anthropic"].official
FIRST_PARTY_VARIABLE = "_CLAUDE_CODE_ASSUME_FIRST_PARTY_BASE_URL"
"""Tells Claude Code that another address leads to Anthropic all the same, as ``1``: without it, it plans for 200,000
tokens where the model has 1,000,000, and leaves out features such as tool search."""
MAX_MESSAGE_BYTES = 64_000_000
"""The largest message of the program that the SDK reads, if the options set no limit. The SDK's own is 1 MB, and a
larger message ends the agent: seen when a session was forked whose transcript, kept in a session store, had 1 MB."""


class GatewayUrl(NamedTuple):
    """The address that Claude Code would send its requests to, and whether settings set it, which beat variables."""

    url: str
    is_in_settings: bool


def find_gateway(options: ClaudeAgentOptions) -> GatewayUrl:
    """Return where the requests of an agent with ``options`` go without us. Raises ``ConfigError``, as
    ``read_settings_option`` does.
    """
    environment = {**os.environ, **options.env}
    own_settings_url = get_settings_url(read_settings_option(options))
    if own_settings_url:
        return GatewayUrl(own_settings_url, is_in_settings=True)
    # The program reads no file of the user's if the options name other sources.
    reads_user_settings = options.setting_sources is None or "user" in options.setting_sources
    user_url = read_user_settings_url(environment) if reads_user_settings else ""
    if user_url:
        return GatewayUrl(user_url, is_in_settings=True)
    return GatewayUrl(environment.get(BASE_URL_VARIABLE, ""), is_in_settings=False)


def find_bypass(options: ClaudeAgentOptions) -> str:
    """Return why the requests of an agent with ``options`` do not come through a proxy, or an empty string.

    Settings of the working folder beat variables. They may be somebody else's, so no key is sent where they point.
    """
    environment = {**os.environ, **options.env}
    for cloud in ("BEDROCK", "VERTEX", "FOUNDRY"):
        if environment.get(f"CLAUDE_CODE_USE_{cloud}"):
            return f"CLAUDE_CODE_USE_{cloud} is set"
    sources = options.setting_sources
    if find_gateway(options).is_in_settings:
        return ""  # then ours are given as an option, which beats all files
    for source, name in (("project", "settings.json"), ("local", "settings.local.json")):
        path = Path(options.cwd or "", ".claude", name)
        if (sources is None or source in sources) and get_settings_url(read_settings_file(path)):
            return f"{path} sets {BASE_URL_VARIABLE}"
    return ""


def read_settings_option(options: ClaudeAgentOptions) -> dict[str, Any]:
    """Return the option ``settings``, a JSON text or the path of a file, as a document; empty if it is not given.

    Raises ``ConfigError`` if it cannot be read.
    """
    if not options.settings:
        return {}
    text = options.settings.strip()
    try:
        if not text.startswith("{"):
            text = Path(options.cwd or "", text).read_text("utf-8-sig")
        document = msgspec.json.decode(text)
    except (OSError, msgspec.MsgspecError, UnicodeError) as error:
        raise ConfigError(f"the option settings cannot be read ({error}); correct it") from None
    if not isinstance(document, dict):
        raise ConfigError("the option settings is no JSON object; correct it")
    return document


def make_proxied_url(proxy_url: str, gateway_url: str) -> str:
    """Return the address at the proxy whose requests it sends on to ``gateway_url``, or to Anthropic if that is empty.

    A gateway of the user's stands behind the proxy's own address, so that one proxy may serve several.
    """
    if not gateway_url or gateway_url.rstrip("/") == ANTHROPIC_URL:
        return proxy_url
    return f"{proxy_url}/u/{gateway_url}"


def point_at_proxy(options: ClaudeAgentOptions, proxy_url: str, *, has_own_upstream: bool) -> ClaudeAgentOptions:
    """Return ``options`` with the proxy's address for all requests of Claude Code, and everything else as it was.

    ``has_own_upstream``: a file of Holdfast says where the proxy sends requests, which counts more than the gateway of
    the options. Raises ``ConfigError``, as ``read_settings_option`` does.
    """
    gateway = find_gateway(options)
    if is_url_at(gateway.url, proxy_url):
        return options
    url = proxy_url if has_own_upstream else make_proxied_url(proxy_url, gateway.url)
    environment = {**os.environ, **options.env}
    variables = {BASE_URL_VARIABLE: url, **make_no_proxy_variables(environment)}
    if url == proxy_url and not has_own_upstream and FIRST_PARTY_VARIABLE not in environment:
        variables[FIRST_PARTY_VARIABLE] = "1"
    pointed_options = replace(
        options,
        env={**options.env, **variables},
        max_buffer_size=options.max_buffer_size or MAX_MESSAGE_BYTES,
    )
    if gateway.is_in_settings:
        settings = read_settings_option(options)
        settings["env"] = {**settings.get("env", {}), BASE_URL_VARIABLE: url}
        pointed_options = replace(pointed_options, settings=msgspec.json.encode(settings).decode())
    return pointed_options


def add_recall(options: ClaudeAgentOptions, recall_server: RecallServer) -> ClaudeAgentOptions:
    """Return ``options`` with the tool ``recall``, allowed, also for the sub-agents that list their tools.

    Raises ``ConfigError`` if the options leave no place for it.
    """
    if not isinstance(options.mcp_servers, dict):
        raise ConfigError("mcp_servers is a file or a text, so the tool recall cannot be added; give a dict")
    if SERVER_NAME in options.mcp_servers:
        raise ConfigError(f"mcp_servers has a server of its own called {SERVER_NAME}; give it another name")
    hooks = dict(options.hooks or {})
    matcher = HookMatcher(matcher=RECALL_TOOL, hooks=[recall_server.note_caller])
    hooks["PreToolUse"] = [*hooks.get("PreToolUse", []), matcher]
    agents = options.agents
    if agents is not None:
        agents = {name: _allow_recall(agent) for name, agent in agents.items()}
    return replace(
        options,
        mcp_servers={**options.mcp_servers, SERVER_NAME: recall_server.make_config()},
        allowed_tools=[*options.allowed_tools, RECALL_TOOL],
        hooks=hooks,
        agents=agents,
    )


def _allow_recall(agent: AgentDefinition) -> AgentDefinition:
    """Return ``agent`` with the tool, if it lists its tools; without a list it has all."""
    if agent.tools is None:
        return agent
    return replace(agent, tools=[*agent.tools, RECALL_TOOL])
