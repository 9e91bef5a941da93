"""HTTP as the proxy speaks it: requests in, responses out, the relay to providers."""
