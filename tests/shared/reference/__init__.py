"""What other tools tell the writer of a summary, and how they divide, quote and cap: worked out for the cases here.

Holdfast does none of it; the worked cases of those tools run on it, beside those that run on the presets.
"""
