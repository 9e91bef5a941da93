"""Providers that speak somebody else's API with rules of their own: one file and one row in ``registry`` each.

A *dialect* is elsewhere the struct ``Dialect``: the rules of one API, for one model and provider, as a value.
"""
