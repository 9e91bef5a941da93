"""What is configured: ``holdfast.toml`` of the project, then the user's, then the tables and presets we ship."""

from holdfast.config.catalog import DEFAULT_MODEL, Catalog, dialect
from holdfast.config.files import FILE, Configuration, configuration, load, shipped, target
from holdfast.config.parsing import parse
from holdfast.config.tables import Override, StoreLimits

__all__ = [
    "DEFAULT_MODEL",
    "FILE",
    "Catalog",
    "Configuration",
    "Override",
    "StoreLimits",
    "configuration",
    "dialect",
    "load",
    "parse",
    "shipped",
    "target",
]
