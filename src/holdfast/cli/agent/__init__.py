"""The parts of ``holdfast agent``: session thread, screen, prompt, and cost line."""
