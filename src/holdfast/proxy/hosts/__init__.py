"""Serve the plugins of coding agents: what to send of a conversation, one compaction of it, and texts read back.

No provider is asked; the agent sends its requests itself. The endpoints are described in docs/hosts/routes.md.
"""
