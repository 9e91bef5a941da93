"""The proxy: it stands between a client and a provider, and keeps what passes inside the window."""
