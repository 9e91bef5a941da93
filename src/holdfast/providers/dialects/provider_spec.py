"""What Holdfast knows of a provider that serves an API of somebody else, as one ``ProviderSpec`` value.

A provider's file says in ``ProviderRules`` what differs from the API: ``requirements`` for the validator, which finds
what breaks them, and ``dialect_changes`` for whatever else Holdfast has to know to write a request. Both are stated for
one model, since many rules depend on it. A requirement that always holds says itself by which values of the dialect
normalization keeps it, so they are not stated again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.providers.dialects.requirements.requirement import Requirement
from holdfast.state.dialect import Dialect


class ProviderRules(Struct, frozen=True):
    """The rules of a provider for one model over one API, as far as they differ from the API's own."""

    requirements: tuple[Requirement, ...] = ()
    """What a request must keep; the validator reports what breaks them."""
    dialect_changes: Mapping[str, Any] = {}
    """Fields of ``Dialect`` that have another value here than in the API's own dialect, as far as no requirement that
    always holds lists it. What stands here wins over what a requirement lists."""
    more_refused_kinds: tuple[str, ...] = ()
    """Kinds of opaque parts that are left out beside those that a requirement lists; see ``Dialect.refused_kinds``."""
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

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a change that would replace the kinds that the API refuses."""
        if "refused_kinds" in self.dialect_changes:
            raise ValueError(
                "dialect_changes has refused_kinds, which are added to those of the API and never replace "
                "them; state more_refused_kinds and accepted_kinds"
            )

    def merge_dialect_changes(self) -> dict[str, Any]:
        """Return all fields of ``Dialect`` that differ here, those that requirements list among them.

        ``refused_kinds`` are those beside the kinds that the API refuses. Raises ``ValueError`` if two requirements
        list different values for a field that ``dialect_changes`` does not state.
        """
        refused_kinds = list(self.more_refused_kinds)
        changes: dict[str, Any] = {}
        for requirement in self.requirements:
            if not requirement.shapes_every_history:
                continue
            for name, value in requirement.list_dialect_changes().items():
                if name == "refused_kinds":
                    refused_kinds += value
                elif name not in self.dialect_changes and changes.setdefault(name, value) != value:
                    raise ValueError(
                        f"{requirement.rule} lists {value!r} for {name}, and another requirement {changes[name]!r}; "
                        "state the value in dialect_changes"
                    )
        return {**changes, **self.dialect_changes, "refused_kinds": tuple(dict.fromkeys(refused_kinds))}

    def list_kept_fields(self, requirement: Requirement, dialect: Dialect) -> list[str]:
        """List the fields by which ``dialect``, adapted to these rules, keeps ``requirement``, which is one of them.

        For a requirement that does not always hold they are those that the provider's file, or the API, states.
        """
        changes = self.merge_dialect_changes()
        kept_fields = []
        for name, value in requirement.list_dialect_changes().items():
            if name in changes or getattr(dialect, name) == value:
                kept_fields.append(name)
        return kept_fields

    def describe_mending(self, requirement: Requirement, dialect: Dialect) -> str:
        """Describe what ``fix`` and the proxy do about a request that breaks ``requirement``, one of these rules.

        ``dialect`` is adapted to the rules.
        """
        ways: list[str] = []
        kept_fields = self.list_kept_fields(requirement, dialect)
        if kept_fields:
            ways.append(f"messages are normalized ({', '.join(f'`{name}`' for name in kept_fields)})")
        if requirement.suggests_changes or requirement.mended_like:
            ways.append("the field is changed")
        return "; ".join(ways) or "only reported"


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
