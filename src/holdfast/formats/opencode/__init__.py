"""Sessions of opencode."""
