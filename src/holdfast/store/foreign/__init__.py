"""Databases of other tools: opened read-only, and written anew."""
