"""What the APIs have in common: JSON that keeps its bytes, streams, options, blocks of other APIs."""
