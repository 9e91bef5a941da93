"""What a session did and cost, and which there are: for ``holdfast ls``, ``stats``, ``watch`` and the inspector."""
