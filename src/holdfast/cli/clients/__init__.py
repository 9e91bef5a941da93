"""Clients that ``run`` starts and ``doctor`` looks at: how each is led to the proxy, where its own settings lead."""
