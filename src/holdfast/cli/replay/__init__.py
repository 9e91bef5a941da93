"""The parts of ``holdfast replay``: the model that writes summaries, and the dump of its requests."""
