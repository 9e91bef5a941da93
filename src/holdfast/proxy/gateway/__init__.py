"""Serve gateways: LLM gateways send messages here to be made smaller, and read the stored texts back.

The endpoints are those that the gateways' own plugins call (docs/hosts/gateways.md). No provider is asked.
"""
