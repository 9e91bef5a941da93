"""Delete each rule of the validator in turn and count the worked cases that are judged wrong without it.

    uv run python tests/providers/rules/rule_cases.py

Prints a line for each rule and exits 1 if a rule can be deleted unnoticed. The cases are in ``cases/API.json``:
``{"id", "rule", "kept", "request"}``; ``{"$repeat": [value, times]}`` means a long text or list. A case is a part
of a request unless it has ``whole``; ``version`` and ``betas`` are headers, unknown without them.
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
"""Cases of this many bytes or more are judged only for the deletion of their own rule."""


def expand_repeats(value):
    """Return a value of a case with every ``$repeat`` expanded."""
    if isinstance(value, dict):
        if "$repeat" in value:
            repeated, times = value["$repeat"]
            return expand_repeats(repeated) * times
        return {key: expand_repeats(inner) for key, inner in value.items()}
    return [expand_repeats(inner) for inner in value] if isinstance(value, list) else value


def load_cases(api):
    """Return the worked cases of an API, requests as bytes."""
    listed = json.loads((CASES / f"{api}.json").read_text())
    return [{**case, "api": api, "request": json.dumps(expand_repeats(case["request"])).encode()} for case in listed]


def get_verdict(found):
    """Return the worst level of findings: ``error``, ``warning``, or ``clean``."""
    levels = {finding.level for finding in found}
    return "error" if "error" in levels else "warning" if levels else "clean"


def get_expected_verdict(case):
    """Return the verdict that a case must get."""
    return "clean" if case["kept"] else LEVELS[case["rule"]]


def validate_case(case, rules=ALL_RULES):
    """Return the findings of ``rules`` in a case."""
    return validate_request(
        case["request"],
        case["api"],
        rules=rules,
        complete=case.get("whole", False),
        version=case.get("version", ""),
        betas=case.get("betas"),
    )


def list_wrong_cases(listed, rules=ALL_RULES):
    """Return the ids of the cases that ``rules`` judge wrong."""
    return [case["id"] for case in listed if get_verdict(validate_case(case, rules)) != get_expected_verdict(case)]


def count_wrong_without_each_rule():
    """Return for each rule how many cases are judged wrong without it."""
    out = {}
    for api in APIS:
        listed = load_cases(api)
        for rule in ALL_RULES:
            if rule.name.startswith(f"{api}."):
                asked = [case for case in listed if len(case["request"]) < _BIG or case["rule"] == rule.name]
                out[rule.name] = len(list_wrong_cases(asked, [other for other in ALL_RULES if other is not rule]))
    return out


def main():
    """Print the table; return 1 if a rule can be deleted without any case being judged wrong."""
    counts = count_wrong_without_each_rule()
    for name, count in counts.items():
        sys.stdout.write(f"{name:40} {count:4} cases wrong without it\n")
    idle = [name for name, count in counts.items() if not count]
    sys.stdout.write(f"{len(counts)} rules, {len(idle)} that no case needs: {', '.join(idle) or 'none'}\n")
    return 1 if idle else 0


if __name__ == "__main__":
    sys.exit(main())
