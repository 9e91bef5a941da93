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
from holdfast.config.parsing import Told, checked, parse, told
from holdfast.config.proxy import of_project
from holdfast.config.tables import Override, StoreLimits
from holdfast.errors import ConfigError, check_types
from holdfast.planning.pipeline import Policy
from holdfast.planning.settings_check import Problem, check
from holdfast.state.entries import Frame
from holdfast.state.target import Target

FILE = "holdfast.toml"


class Configuration(Struct, frozen=True):
    """All that files and tables say. ``overrides`` stand in order of their strength, the weakest first."""

    catalog: Catalog
    overrides: tuple[Override, ...] = ()
    store: StoreLimits = StoreLimits()
    proxy: dict[str, Any] = {}
    """What the files say of the proxy, by the names of its settings; ``holdfast.proxy.settings`` adds the rest."""

    def changes(self, name: str) -> dict[str, Override]:
        """Return what is changed of policy ``name``, by setting: the strongest override of each."""
        return {one.setting: one for one in self.overrides if one.policy in {"", name}}

    def policy(self, name: str = "holdfast") -> Policy:
        """Return policy ``name`` as it is in force.

        Raises ``UnknownPolicy``, or ``ConfigError`` where changed settings contradict others.
        """
        preset, changes = Policy.preset(name), self.changes(name)
        if not changes:
            return preset
        settings = replace(preset.settings, **{setting: one.value for setting, one in changes.items()})
        for problem in check(settings):
            blamed = [changes[setting] for setting in problem.settings if setting in changes]
            if blamed:
                raise ConfigError(_contradiction(name, problem, blamed))
        return replace(preset, settings=settings)


def _contradiction(name: str, problem: Problem, blamed: list[Override]) -> str:
    keys = ", ".join(f"{one.table} {one.setting}" for one in blamed)
    return f"{blamed[-1].file}: {keys}, in policy {name}: {problem.why}"


@cache
def shipped() -> Catalog:
    """Return the tables that come with the package."""
    data = files("holdfast.data")
    models, prices = (parse(data.joinpath(name).read_text("utf-8"), name) for name in ("catalog.toml", "prices.toml"))
    return checked(models.before(prices), "catalog.toml")


def configuration(project: Path | None = None, user: Path | None = None) -> Configuration:
    """Return what is in force: the project's ``holdfast.toml`` before the user's before what is shipped.

    ``project`` and ``user`` are folders (the working folder and the platform's configuration folder by default); a
    file that is not there says nothing. Raises ``ConfigError`` for one that cannot be read or says something unknown.
    """
    found, own = Configuration(shipped()), user or user_config_path("holdfast", appauthor=False)
    for folder in (own, project or Path()):
        path = folder / FILE
        if _is_there(path):
            new = told(_read(path), str(path))
            if folder.resolve() != own.resolve():
                of_project(new.proxy, str(path), str(own / FILE))
            found = _under(new, found, str(path))
    return found


def _under(new: Told, found: Configuration, name: str) -> Configuration:
    """Return what is in force when ``new`` stands above what was ``found``."""
    return Configuration(
        checked(new.catalog.before(found.catalog), name),
        (*found.overrides, *new.overrides),
        new.store.above(found.store),
        found.proxy | new.proxy,
    )


def load(project: Path | None = None, user: Path | None = None) -> Catalog:
    """Return the catalogue in force; see ``configuration``."""
    return configuration(project, user).catalog


def _is_there(path: Path) -> bool:
    """Return whether anything is called that: a link to nowhere, and what cannot be looked at, too."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _read(path: Path) -> str:
    try:
        if path.is_fifo():
            msg = f"{path}: is a pipe and no file; remove it"
            raise ConfigError(msg)
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path}: cannot be read as UTF-8 text ({error}); repair or remove it"
        raise ConfigError(msg) from error


def target(
    api: str,
    model: str,
    *,
    window: int | None = None,
    frame: Frame = Frame(),
    asked_output: int | None = None,
    catalog: Catalog | None = None,
    trusting: bool = False,
) -> Target:
    """Return all that is known of requests to ``model`` by ``api``.

    ``window`` in tokens overrides the catalogue; an unknown model gets 200,000 and an origin that says so, an unknown
    API the strictest dialect. Without ``catalog`` the shipped one is asked. ``trusting`` leaves a client's own messages
    to a server that is not known as they are. Raises ``ConfigError`` for values of other types.
    """
    check_types(ConfigError, api=(api, str), model=(model, str), frame=(frame, Frame))
    check_types(ConfigError, window=(window, int | None), asked_output=(asked_output, int | None))
    check_types(ConfigError, catalog=(catalog, Catalog | None))
    known = catalog or shipped()
    return Target(
        api=api,
        model=model,
        dialect=known.dialect(api, model, trusting=trusting),
        limits=known.limits(model, window, asked_output),
        frame=frame,
        cache=known.rules(api, model),
        prices=known.prices(api, model),
        prior=known.prior(model),
    )
