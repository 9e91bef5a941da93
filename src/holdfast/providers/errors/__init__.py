"""What a provider's error means, and how each API words its errors."""
