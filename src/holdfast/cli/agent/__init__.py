"""The parts of ``holdfast agent``: the thread its session runs in, the screen, the prompt, the meter of the window."""
