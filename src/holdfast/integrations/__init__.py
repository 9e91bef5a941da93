"""Adapters for agent frameworks, one package each: their agents stay inside the model's context window.

Each needs its framework installed (``pip install "holdfast[langchain]"``); importing this package loads none of them.
"""
