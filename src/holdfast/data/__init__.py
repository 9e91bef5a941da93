"""Dated facts that ship with the package."""
