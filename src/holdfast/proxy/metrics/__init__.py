"""The proxy's own metrics, as JSON and for Prometheus."""
