"""Old tool results give way to a line; ``epoch.py`` is our own rule, the policies of other tools have theirs."""
