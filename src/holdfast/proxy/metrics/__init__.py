"""What the proxy counts about itself, as JSON and for Prometheus."""
