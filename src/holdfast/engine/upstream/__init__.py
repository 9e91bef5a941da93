"""Who answers requests: HTTP, official SDK clients, and their replies."""
