"""Summaries that a model writes: what it reads, what it is asked for, in how many parts, and what of it is taken.

How other tools do it is in ``reference``, to be compared; nothing here runs that.
"""
