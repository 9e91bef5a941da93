"""All servers by name. A new server is a module beside this one and a row here."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.testing.provider.dialects.azure import AZURE
from holdfast.testing.provider.dialects.bedrock import BEDROCK
from holdfast.testing.provider.dialects.cerebras import CEREBRAS
from holdfast.testing.provider.dialects.deepseek import DEEPSEEK
from holdfast.testing.provider.dialects.glm import GLM
from holdfast.testing.provider.dialects.groq import GROQ
from holdfast.testing.provider.dialects.kimi import KIMI
from holdfast.testing.provider.dialects.llamacpp import LLAMACPP
from holdfast.testing.provider.dialects.lmstudio import LMSTUDIO
from holdfast.testing.provider.dialects.minimax import MINIMAX
from holdfast.testing.provider.dialects.mistral import MISTRAL
from holdfast.testing.provider.dialects.ollama import OLLAMA
from holdfast.testing.provider.dialects.openrouter import OPENROUTER
from holdfast.testing.provider.dialects.qwen import QWEN
from holdfast.testing.provider.dialects.server_dialect import ServerDialect
from holdfast.testing.provider.dialects.sglang import SGLANG
from holdfast.testing.provider.dialects.vertex import VERTEX
from holdfast.testing.provider.dialects.vllm import VLLM
from holdfast.testing.provider.dialects.xai import XAI

_DIALECTS = (
    MISTRAL,
    DEEPSEEK,
    KIMI,
    GLM,
    QWEN,
    MINIMAX,
    XAI,
    GROQ,
    CEREBRAS,
    OPENROUTER,
    BEDROCK,
    VERTEX,
    AZURE,
    VLLM,
    SGLANG,
    LLAMACPP,
    OLLAMA,
    LMSTUDIO,
)

SERVERS: Mapping[str, ServerDialect] = {dialect.name: dialect for dialect in _DIALECTS}
"""The servers by name."""
SERVER_NAMES = tuple(SERVERS)
"""The allowed values of ``ProviderSettings.server``, beside the empty string for the API's own provider."""


def find_server(name: str) -> ServerDialect | None:
    """Return the server with this name, or None for the empty string."""
    return SERVERS[name] if name else None
