"""The configuration in force: files and shipped tables, merged in order of their strength."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from platformdirs import user_config_path

from holdfast.config.catalog import Catalog
from holdfast.config.parsing import ConfigFile, check_catalog, parse_catalog, parse_config_file
from holdfast.config.proxy import check_project_settings
from holdfast.config.tables import Override, StoreSettings, check_project_store
from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings_check import SettingsProblem, change_settings, check_settings
from holdfast.providers.dialects.request_provider import RequestProvider
from holdfast.state.entries import RequestSetup
from holdfast.state.target import Target

CONFIG_FILE_NAME = "holdfast.toml"


class Configuration(Struct, frozen=True):
    """Everything that files and tables say. Of ``overrides`` a later one is stronger."""

    catalog: Catalog
    overrides: tuple[Override, ...] = ()
    store: StoreSettings = StoreSettings()
    proxy: dict[str, Any] = {}
    """Settings of the proxy in the files, by name; ``holdfast.proxy.settings`` adds environment and options."""

    def find_overrides(self, name: str) -> dict[str, Override]:
        """Return the strongest override of each setting of policy ``name``, by setting."""
        strongest = {}
        for override in self.overrides:
            if override.policy in {"", name}:
                strongest[override.setting] = override  # a later one replaces an earlier one
        return strongest

    def build_policy(self, name: str = "holdfast") -> Policy:
        """Build policy ``name`` with the overrides of the files.

        Raises ``UnknownPolicy``, or ``ConfigError`` if overridden settings contradict others.
        """
        preset = Policy.preset(name)
        changes = self.find_overrides(name)
        if not changes:
            return preset
        values = {setting: override.value for setting, override in changes.items()}
        settings, rules = change_settings(preset.settings, preset.rules, values)
        for problem in check_settings(settings, rules):
            # A contradiction within the preset itself is no fault of the file.
            culprits = [changes[setting] for setting in problem.settings if setting in changes]
            if culprits:
                raise ConfigError(_describe_contradiction(name, problem, culprits))
        return replace(preset, settings=settings, rules=rules)


def _describe_contradiction(name: str, problem: SettingsProblem, culprits: list[Override]) -> str:
    keys = ", ".join(f"{override.table_header} {override.key}" for override in culprits)
    return f"{culprits[-1].file}: {keys}, in policy {name}: {problem.why}"


@cache
def load_shipped_catalog() -> Catalog:
    """Return the tables that are shipped with the package."""
    data = files("holdfast.data")
    models = parse_catalog(data.joinpath("catalog.toml").read_text("utf-8"), "catalog.toml")
    prices = parse_catalog(data.joinpath("prices.toml").read_text("utf-8"), "prices.toml")
    return check_catalog(models.merge_before(prices), "catalog.toml")


def load_configuration(project: Path | None = None, user: Path | None = None) -> Configuration:
    """Load the configuration in force: the project's file wins over the user's, and that over the shipped tables.

    ``project`` and ``user`` are folders; by default the working folder and the platform's configuration folder. A
    missing file is ignored. Raises ``ConfigError`` for one that cannot be read or contains anything unknown.
    """
    user_folder = user or user_config_path("holdfast", appauthor=False)
    configuration = Configuration(load_shipped_catalog())
    # The user's file first, so that the project's is merged over it.
    for folder in (user_folder, project or Path()):
        path = folder / CONFIG_FILE_NAME
        if not _has_directory_entry(path):
            continue
        config_file = parse_config_file(_read_config_file(path), str(path))
        is_project = folder.resolve() != user_folder.resolve()
        if is_project:
            check_project_settings(config_file.proxy, str(path), str(user_folder / CONFIG_FILE_NAME))
            check_project_store(config_file.store, str(path), str(user_folder / CONFIG_FILE_NAME))
        configuration = _merge_config_file(config_file, configuration, str(path))
    return configuration


def _merge_config_file(new: ConfigFile, weaker: Configuration, name: str) -> Configuration:
    """Return ``weaker`` with everything that ``new`` says in front of it."""
    catalog = new.catalog.merge_before(weaker.catalog)
    return Configuration(
        catalog=check_catalog(catalog, name),
        overrides=(*weaker.overrides, *new.overrides),
        store=new.store.merge_over(weaker.store),
        proxy=weaker.proxy | new.proxy,
    )


def load_catalog(project: Path | None = None, user: Path | None = None) -> Catalog:
    """Load only the catalogue in force; see ``load_configuration``."""
    return load_configuration(project, user).catalog


def _has_directory_entry(path: Path) -> bool:
    """Return whether ``path`` exists in any form, also as a broken link or in a folder that cannot be read.

    A file that is there but cannot be used must be an error, not silently be ignored.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _read_config_file(path: Path) -> str:
    try:
        # Reading a named pipe would block.
        if path.is_fifo():
            msg = f"{path}: is a pipe and no file; remove it"
            raise ConfigError(msg)
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as UTF-8 text ({error}); repair or remove it"
        raise ConfigError(msg) from error


def get_target(
    api: str,
    model: str,
    *,
    window: int | None = None,
    setup: RequestSetup = RequestSetup(),
    asked_output: int | None = None,
    catalog: Catalog | None = None,
    trusts_client: bool = False,
    provider: str = "",
) -> Target:
    """Return everything known about requests to ``model`` over ``api``.

    ``window`` in tokens overrides the catalogue. An unknown model gets 200,000 tokens and a source that says so, an
    unknown API the strictest dialect. Without ``catalog`` the shipped one is used. With ``trusts_client`` a client's
    own messages to an unknown server are not normalized. ``provider`` is who serves the model (``mistral``, ``groq``);
    without it the catalogue or the model's name tells. Raises ``ConfigError`` for values of other types, and for an
    unknown provider.
    """
    # Checked here, since a wrong type would otherwise fail much later, in the middle of planning.
    raise_if_wrong_type(ConfigError, api=(api, str), model=(model, str), setup=(setup, RequestSetup))
    raise_if_wrong_type(ConfigError, window=(window, int | None), asked_output=(asked_output, int | None))
    raise_if_wrong_type(ConfigError, catalog=(catalog, Catalog | None), provider=(provider, str))
    model_catalog = catalog or load_shipped_catalog()
    request_provider = model_catalog.find_provider(api, model, named=provider)
    target = build_target(model_catalog, api, model, request_provider, window=window, trusts_client=trusts_client)
    limits = model_catalog.get_limits(model, window, asked_output)
    return replace(target, limits=limits, setup=setup)


def build_target(
    catalog: Catalog,
    api: str,
    model: str,
    provider: RequestProvider,
    *,
    window: int | None = None,
    trusts_client: bool = False,
) -> Target:
    """Return everything that ``catalog`` knows about requests to ``model`` over ``api`` at ``provider``.

    ``window`` and ``trusts_client`` are those of ``get_target``.
    """
    return Target(
        api=api,
        model=model,
        dialect=catalog.get_dialect(api, model, trusting=trusts_client, provider=provider),
        limits=catalog.get_limits(model, window),
        setup=RequestSetup(),
        cache_rules=catalog.get_cache_rules(api, model),
        prices=catalog.get_prices(api, model),
        prior_ratio=catalog.get_prior_ratio(model),
    )
