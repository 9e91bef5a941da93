"""A proxy that is always there: a user service, and clients pointed at it, written and undone exactly."""
