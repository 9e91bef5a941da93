"""An agent's environment: its working folder, rules, skills, tools and system prompt."""
