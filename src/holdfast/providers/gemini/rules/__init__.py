"""The rules of generateContent, as the validator proves them."""
