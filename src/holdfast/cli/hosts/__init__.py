"""What coding agents that load plugins ask of the command line; their plugins are in ``integrations/hosts``."""
