"""What is configured: ``holdfast.toml`` of the project, then the user's, then the tables and presets we ship."""

from holdfast.config.catalog import DEFAULT_MODEL, UNKNOWN_PRIOR, UNKNOWN_WINDOW, Catalog, dialect
from holdfast.config.files import FILE, Configuration, configuration, load, policy, shipped, target
from holdfast.config.parsing import parse
from holdfast.config.tables import Override, StoreLimits

__all__ = [
    "DEFAULT_MODEL",
    "FILE",
    "UNKNOWN_PRIOR",
    "UNKNOWN_WINDOW",
    "Catalog",
    "Configuration",
    "Override",
    "StoreLimits",
    "configuration",
    "dialect",
    "load",
    "parse",
    "policy",
    "shipped",
    "target",
]
