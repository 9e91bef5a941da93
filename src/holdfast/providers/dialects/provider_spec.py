"""What Holdfast knows of a provider that serves an API of somebody else, as one ``ProviderSpec`` value.

A provider's file says in ``ProviderRules`` what differs from the API: ``dialect_changes`` for normalization, which
makes a history valid there, and ``requirements`` for the validator, which finds what is not. Both are stated for one
model, since many rules depend on it. A requirement names the fields of the dialect that keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.dialects.requirements.requirement import Requirement


class ProviderRules(Struct, frozen=True):
    """The rules of a provider for one model over one API, as far as they differ from the API's own."""

    requirements: tuple[Requirement, ...] = ()
    """What a request must keep; the validator reports what breaks them."""
    dialect_changes: Mapping[str, Any] = {}
    """Fields of ``Dialect`` that have another value here than in the API's own dialect."""
    refused_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that are left out beside those that a requirement names; see ``Dialect.refused_kinds``."""
    accepted_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that are taken here although the API refuses them."""
    refused_stream_fields: frozenset[str] = frozenset()
    """Fields with which the API is asked for a stream, and which are refused here."""
    keeps_size_limits: bool = False
    """Whether the limits of the API's own provider on images and bytes hold here too; if not, none are assumed."""
    skipped_rules: frozenset[str] = frozenset()
    """Rules of the API that the provider does not have, named without the API (``tools`` for ``openai-chat.tools``).

    Requirements of its own may have the same name; they still hold. List ``tool-schema`` unless the server enforces the
    same limits on schemas as the maker of the API.
    """

    @property
    def all_refused_kinds(self) -> tuple[str, ...]:
        """All kinds of opaque parts that are left out here although the API takes them."""
        kinds = list(self.refused_kinds)
        for requirement in self.requirements:
            kinds += requirement.refused_kinds
        return tuple(dict.fromkeys(kinds))


class ProviderSpec(Struct, frozen=True):
    """A provider: its name, the signs by which its requests are recognized, and its rules."""

    name: str
    """Its name in options and settings (``mistral``)."""
    title: str
    """Its name for people (``Mistral``)."""
    rules_by_api: Mapping[str, Callable[[str], ProviderRules]]
    """For each API that it serves, a function from the model to the rules."""
    hosts: tuple[str, ...] = ()
    """Host names; one that begins with a dot stands for all hosts under it, a ``*`` for any text."""
    url_pattern: str = ""
    """Regular expression that the address must contain too, where the host alone does not tell."""
    ports: tuple[int, ...] = ()
    """Ports by which a server on this machine or in its network is recognized."""
    model_pattern: str = ""
    """Regular expression for the whole name, in lower case, of the models that only this provider offers under it."""
    open_model_pattern: str = ""
    """Regular expression found in the names of its open models, wherever they are served.

    Their chat templates enforce the same order and ids, so histories are normalized for them, but nothing is reported.
    """
    example_models: tuple[str, ...] = ("",)
    """A model of each family that has rules of its own, for documentation."""
    body_sign: tuple[str, str] = ("", "")
    """A text field of the body and how its value begins, if that gives the provider away."""
    keeps_client_content: bool = False
    """Whether a client's messages are sent as they are: what the server accepts depends on the model's chat template.

    Messages that Holdfast writes itself follow the strictest rules then. Of a client's request the proxy changes only
    options that break a requirement of this provider.
    """
