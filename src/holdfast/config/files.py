"""What is in force: the files and tables, folded in order of their strength."""

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
from holdfast.config.tables import Override, StoreLimits
from holdfast.errors import ConfigError, raise_if_wrong_type
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings_check import SettingsProblem, change_settings, check_settings
from holdfast.state.entries import RequestSetup
from holdfast.state.target import Target

CONFIG_FILE_NAME = "holdfast.toml"


class Configuration(Struct, frozen=True):
    """All that files and tables say. ``overrides`` stand in order of their strength, the weakest first."""

    catalog: Catalog
    overrides: tuple[Override, ...] = ()
    store: StoreLimits = StoreLimits()
    proxy: dict[str, Any] = {}
    """What the files say of the proxy, by the names of its settings; ``holdfast.proxy.settings`` adds the rest."""

    def find_overrides(self, name: str) -> dict[str, Override]:
        """Return what is changed of policy ``name``, by setting: the strongest override of each."""
        return {override.setting: override for override in self.overrides if override.policy in {"", name}}

    def build_policy(self, name: str = "holdfast") -> Policy:
        """Return policy ``name`` as it is in force.

        Raises ``UnknownPolicy``, or ``ConfigError`` where changed settings contradict others.
        """
        preset, changes = Policy.preset(name), self.find_overrides(name)
        if not changes:
            return preset
        values = {name: override.value for name, override in changes.items()}
        settings, rules = change_settings(preset.settings, preset.rules, values)
        for problem in check_settings(settings, rules):
            culprits = [changes[setting] for setting in problem.settings if setting in changes]
            if culprits:
                raise ConfigError(_describe_contradiction(name, problem, culprits))
        return replace(preset, settings=settings, rules=rules)


def _describe_contradiction(name: str, problem: SettingsProblem, culprits: list[Override]) -> str:
    keys = ", ".join(f"{override.table_header} {override.key}" for override in culprits)
    return f"{culprits[-1].file}: {keys}, in policy {name}: {problem.why}"


@cache
def load_shipped_catalog() -> Catalog:
    """Return the tables that come with the package."""
    data = files("holdfast.data")
    models, prices = (
        parse_catalog(data.joinpath(name).read_text("utf-8"), name) for name in ("catalog.toml", "prices.toml")
    )
    return check_catalog(models.merge_before(prices), "catalog.toml")


def load_configuration(project: Path | None = None, user: Path | None = None) -> Configuration:
    """Return what is in force: the project's ``holdfast.toml`` before the user's before what is shipped.

    ``project`` and ``user`` are folders (the working folder and the platform's configuration folder by default); a
    file that is not there says nothing. Raises ``ConfigError`` for one that cannot be read or says something unknown.
    """
    config, own = Configuration(load_shipped_catalog()), user or user_config_path("holdfast", appauthor=False)
    for folder in (own, project or Path()):
        path = folder / CONFIG_FILE_NAME
        if _has_directory_entry(path):
            new = parse_config_file(_read_config_file(path), str(path))
            if folder.resolve() != own.resolve():
                check_project_settings(new.proxy, str(path), str(own / CONFIG_FILE_NAME))
            config = _merge_config_file(new, config, str(path))
    return config


def _merge_config_file(new: ConfigFile, weaker: Configuration, name: str) -> Configuration:
    """Return what is in force when ``new`` stands above what was ``weaker``."""
    return Configuration(
        check_catalog(new.catalog.merge_before(weaker.catalog), name),
        (*weaker.overrides, *new.overrides),
        new.store.merge_over(weaker.store),
        weaker.proxy | new.proxy,
    )


def load_catalog(project: Path | None = None, user: Path | None = None) -> Catalog:
    """Return the catalogue in force; see ``load_configuration``."""
    return load_configuration(project, user).catalog


def _has_directory_entry(path: Path) -> bool:
    """Return whether anything is called that: a link to nowhere, and what cannot be looked at, too."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _read_config_file(path: Path) -> str:
    try:
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
) -> Target:
    """Return all that is known of requests to ``model`` by ``api``.

    ``window`` in tokens overrides the catalogue; an unknown model gets 200,000 and an origin that says so, an unknown
    API the strictest dialect. Without ``catalog`` the shipped one is asked. ``trusts_client`` leaves a client's own
    messages to a server that is not known as they are. Raises ``ConfigError`` for values of other types.
    """
    raise_if_wrong_type(ConfigError, api=(api, str), model=(model, str), setup=(setup, RequestSetup))
    raise_if_wrong_type(ConfigError, window=(window, int | None), asked_output=(asked_output, int | None))
    raise_if_wrong_type(ConfigError, catalog=(catalog, Catalog | None))
    model_catalog = catalog or load_shipped_catalog()
    return Target(
        api=api,
        model=model,
        dialect=model_catalog.get_dialect(api, model, trusting=trusts_client),
        limits=model_catalog.get_limits(model, window, asked_output),
        setup=setup,
        cache_rules=model_catalog.get_cache_rules(api, model),
        prices=model_catalog.get_prices(api, model),
        prior_ratio=model_catalog.get_prior_ratio(model),
    )
