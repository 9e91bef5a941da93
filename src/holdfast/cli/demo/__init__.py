"""The parts of ``holdfast demo``: the task with and without Holdfast, what its requests cost, the comparison."""
