"""A worked reference of what other tools tell the writer of a summary, and of how they divide, quote and cap.

The numbers of the presets are checked against it (``docs/presets.md``), and the worked cases of those tools run on it;
no preset runs any of it.
"""
