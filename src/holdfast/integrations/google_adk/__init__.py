"""Google ADK: a plugin that keeps the conversations of all agents of an app inside their models' windows.

::

    from google.adk.apps import App
    from holdfast.integrations.google_adk import HoldfastPlugin

    app = App(name="my_app", root_agent=agent, plugins=[HoldfastPlugin()])

Every call of a model sees a reduced view; the session's events stay whole. The plugin gives the model the tool
``recall``, which reads back what the view leaves out, and calls the model again with less if its provider refuses a
request for its length.
"""

from holdfast.integrations.common.framework import require_framework

with require_framework("Google ADK", distribution="google-adk", oldest_version="2.9", extra="google-adk"):
    from holdfast.integrations.google_adk.plugin import HoldfastPlugin

__all__ = ["HoldfastPlugin"]
