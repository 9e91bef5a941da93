"""The providers that clients ask: where each of them is, and the variables by which its SDKs are led elsewhere."""

from __future__ import annotations

from msgspec import Struct


class Variable(Struct, frozen=True):
    """A variable that holds an address."""

    name: str
    behind: str = ""
    """What clients want to stand behind the provider's address."""
    is_usual: bool = True
    """Whether a client is given it where it was not set; else it is only led through the proxy."""


class Provider(Struct, frozen=True):
    """Who answers requests that name nobody else."""

    name: str
    """What settings and options call it."""
    answers: str
    """The APIs that it answers, as people call them."""
    official: str
    """Its own address, without a version."""
    path: str
    """What stands behind that in a setting."""
    variables: tuple[Variable, ...]
    """What its SDKs, LiteLLM and LangChain read, the strongest first. [M]"""

    @property
    def address(self) -> str:
        """Its own address as a setting holds it."""
        return self.official + self.path


_EVERY = (
    Provider(
        "anthropic",
        "Messages",
        "https://api.anthropic.com",
        "",
        (
            Variable("ANTHROPIC_BASE_URL"),
            Variable("ANTHROPIC_API_BASE", is_usual=False),
            Variable("ANTHROPIC_API_URL", is_usual=False),
        ),
    ),
    Provider(
        "openai",
        "Chat Completions and Responses",
        "https://api.openai.com",
        "/v1",
        (Variable("OPENAI_BASE_URL", "/v1"), Variable("OPENAI_API_BASE", "/v1")),
    ),
    Provider(
        "gemini",
        "Gemini",
        "https://generativelanguage.googleapis.com",
        "",
        (Variable("GOOGLE_GEMINI_BASE_URL"), Variable("GEMINI_API_BASE", "/v1beta")),
    ),
)
PROVIDERS = {one.name: one for one in _EVERY}
"""The providers by their names."""
VARIABLES = {variable.name: (one, variable) for one in _EVERY for variable in one.variables}
"""The variables of them all, each with its provider."""


def leading_to(address: str) -> dict[str, str]:
    """Return the variables that lead the SDK of each provider to a server at ``address``."""
    return {one.variables[0].name: address + one.variables[0].behind for one in _EVERY}
