"""The JSON Schemas of tools: what an API refuses in them, where it is broken, and how it is repaired.

``limits`` has the values that differ between APIs and servers, ``check`` finds problems, ``repair`` removes them.
"""
