"""The parts of ``holdfast demo``: the two runs, the cost of their requests, and the comparison."""
