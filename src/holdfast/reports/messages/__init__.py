"""What happened to one message: for ``holdfast why``, ``undo`` and the inspector's page of a message."""
