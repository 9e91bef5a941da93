"""Serve the plugins of coding agents: what to send of a conversation, and one compaction of it.

No provider is asked; the agent sends its requests itself. The endpoints are described in docs/hosts/routes.md.
"""
