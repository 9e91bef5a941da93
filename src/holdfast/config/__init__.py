"""Configuration: the project's ``holdfast.toml``, then the user's, then the tables and presets that we ship."""

from holdfast.config.catalog import DEFAULT_MODEL, Catalog
from holdfast.config.files import (
    CONFIG_FILE_NAME,
    Configuration,
    get_target,
    load_catalog,
    load_configuration,
    load_shipped_catalog,
)
from holdfast.config.parsing import parse_catalog
from holdfast.config.tables import Override, StoreSettings

__all__ = [
    "CONFIG_FILE_NAME",
    "DEFAULT_MODEL",
    "Catalog",
    "Configuration",
    "Override",
    "StoreSettings",
    "get_target",
    "load_catalog",
    "load_configuration",
    "load_shipped_catalog",
    "parse_catalog",
]
