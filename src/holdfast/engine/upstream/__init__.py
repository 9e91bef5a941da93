"""Upstreams send requests to providers: over HTTP, or through the clients of official SDKs."""
