"""Delete each rule of the validator in turn and count the worked cases that are then judged wrong.

    uv run python tests/providers/rules/rule_cases.py

Prints a line for each rule and exits 1 where the cases do not miss a rule. A case lies in ``cases/API.json``:
``{"id", "rule", "kept", "request"}``; ``{"$repeat": [value, times]}`` stands for a long text or list. It is a part of a
request, unless it says that it is ``whole``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from holdfast.providers.rules.validate import ALL_RULES, validate_request

CASES = Path(__file__).with_name("cases")
APIS = ("anthropic", "openai-chat", "openai-responses", "gemini")
LEVELS = {rule.name: rule.level for rule in ALL_RULES}
_BIG = 100_000
"""Bytes from which on a case is judged for the deletion of its own rule only."""


def grown(value):
    """Return a value of a case with its repetitions written out."""
    if isinstance(value, dict):
        if "$repeat" in value:
            one, times = value["$repeat"]
            return grown(one) * times
        return {key: grown(inner) for key, inner in value.items()}
    return [grown(inner) for inner in value] if isinstance(value, list) else value


def cases(api):
    """Return the worked cases of an API, requests as bytes."""
    listed = json.loads((CASES / f"{api}.json").read_text())
    return [{**one, "api": api, "request": json.dumps(grown(one["request"])).encode()} for one in listed]


def verdict(found):
    """Return how bad findings are: ``error``, ``warning``, or ``clean``."""
    levels = {one.level for one in found}
    return "error" if "error" in levels else "warning" if levels else "clean"


def wanted(case):
    """Return the verdict that a case is to get."""
    return "clean" if case["kept"] else LEVELS[case["rule"]]


def judged(case, rules=ALL_RULES):
    """Return what ``rules`` find in a case."""
    return validate_request(case["request"], case["api"], rules=rules, complete=case.get("whole", False))


def wrong(listed, rules=ALL_RULES):
    """Return the ids of the cases that ``rules`` judge wrong."""
    return [one["id"] for one in listed if verdict(judged(one, rules)) != wanted(one)]


def table():
    """Return for each rule how many cases are judged wrong without it."""
    out = {}
    for api in APIS:
        listed = cases(api)
        for rule in ALL_RULES:
            if rule.name.startswith(f"{api}."):
                asked = [one for one in listed if len(one["request"]) < _BIG or one["rule"] == rule.name]
                out[rule.name] = len(wrong(asked, [other for other in ALL_RULES if other is not rule]))
    return out


def main():
    """Print the table; return 1 where the cases do not miss a rule."""
    counts = table()
    for name, count in counts.items():
        sys.stdout.write(f"{name:40} {count:4} cases wrong without it\n")
    idle = [name for name, count in counts.items() if not count]
    sys.stdout.write(f"{len(counts)} rules, {len(idle)} that no case misses: {', '.join(idle) or 'none'}\n")
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
