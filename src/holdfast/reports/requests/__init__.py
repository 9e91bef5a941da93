"""What one request holds, and how two differ: for ``holdfast context``, ``diff``, ``why`` and the inspector."""
