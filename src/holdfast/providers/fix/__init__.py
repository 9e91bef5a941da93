"""What ``holdfast fix`` does to a request body, so that its API takes it."""
