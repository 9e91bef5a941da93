"""JSON read, replaced and written in pieces; what nobody touches keeps its bytes."""
