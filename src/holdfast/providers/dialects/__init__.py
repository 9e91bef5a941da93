"""Providers that speak somebody else's API with rules of their own: one file and one row in ``registry`` each."""
