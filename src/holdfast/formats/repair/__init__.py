"""Repairs session files of other tools, so that the tool can open them and continue."""
