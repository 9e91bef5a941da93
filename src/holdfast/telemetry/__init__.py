"""OpenTelemetry: spans and metrics of model requests and of what Holdfast does about them, if they are asked for.

``switch.py`` says whether they are. Only then the other modules are imported, and with them OpenTelemetry.
"""
