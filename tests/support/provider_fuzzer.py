"""A fuzzer for providers: whatever was mangled, the strict provider takes what Holdfast makes of it.

Usage: python tests/support/provider_fuzzer.py [--count N] [--seed S] [--provider NAME] [--progress FILE]

Each seed is one request: a mangled conversation with reasoning in fields of several servers, options that providers
differ about, and the way in which it reaches Holdfast: as messages, or as the body of a client. The strict provider
judges the result by rows of its own. With ``--progress`` finished batches are written to a file and skipped next time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from history_fuzzer import drop_unsupported_parts, mangle_conversation
from msgspec import Raw

from holdfast.config import get_target
from holdfast.messages.message import Message
from holdfast.messages.parts import Opaque, Part, ProviderSignature, Thinking
from holdfast.messages.sized_message import SizedMessage
from holdfast.normalize.normalize_history import normalize_history
from holdfast.normalize.parts import has_nonblank_content
from holdfast.providers.anthropic.models import get_claude_traits
from holdfast.providers.common.json.body_fields import parse_body_fields
from holdfast.providers.fix.client_options import apply_option_fixes, find_option_fixes
from holdfast.providers.requests.parsed_request import parse_request
from holdfast.providers.requests.request_body import build_request_body, render_request
from holdfast.state.dialect import Dialect
from holdfast.state.view import apply_normalization
from holdfast.testing.provider import Provider, ProviderSettings, RefusalReply

BATCH = 1_000
"""Requests of one batch, the unit of ``--progress``."""
PROVIDER_MODELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "mistral": (("openai-chat", "mistral-large-latest"), ("openai-chat", "mistral-medium-3-5")),
    "deepseek": (
        ("openai-chat", "deepseek-flash"),
        ("openai-chat", "deepseek-v4-pro"),
        ("openai-chat", "deepseek-chat"),
    ),
    "kimi": (("openai-chat", "kimi-k2.5"), ("openai-chat", "kimi-k2.7-code"), ("openai-chat", "kimi-k3")),
    "glm": (("openai-chat", "glm-5"), ("openai-chat", "glm-5.3")),
    "qwen": (("openai-chat", "qwen3.8-max"), ("openai-chat", "qwen-plus"), ("openai-chat", "qwen3-32b")),
    "minimax": (("openai-chat", "MiniMax-M2.5"), ("openai-chat", "MiniMax-M3")),
    "xai": (("openai-chat", "grok-4.6"), ("openai-chat", "grok-4.20-reasoning"), ("openai-responses", "grok-4.5")),
    "groq": (("openai-chat", "openai/gpt-oss-120b"), ("openai-chat", "qwen/qwen3.8-27b")),
    "cerebras": (("openai-chat", "qwen-3.8-27b"),),
    "openrouter": (("openai-chat", "anthropic/claude-sonnet-4.5"), ("openai-chat", "moonshotai/kimi-k2.5")),
    "bedrock": (
        ("anthropic", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
        ("anthropic", "us.anthropic.claude-opus-4-8"),
    ),
    "vertex": (("anthropic", "claude-sonnet-4-5@20250929"), ("gemini", "gemini-3.1-pro-preview")),
    "azure": (("openai-chat", "my-deployment"), ("openai-responses", "my-deployment")),
    "vllm": (("openai-chat", "meta-llama/Llama-4"),),
    "sglang": (("openai-chat", "zai-org/GLM-5"),),
    "llamacpp": (("openai-chat", "local"),),
    "ollama": (("openai-chat", "qwen3:8b"),),
    "lmstudio": (("openai-chat", "qwen3-8b"),),
}
"""For each provider, pairs of API and model that have rules of their own."""
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_CHAT_OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.3},
    {"temperature": 1.7},
    {"temperature": 2},
    {"top_p": 0},
    {"top_p": 0.9},
    {"n": 1},
    {"presence_penalty": 0},
    {"presence_penalty": 0.5},
    {"stop": ["END"]},
    {"store": False},
    {"stream": True, "stream_options": {"include_usage": True}},
    {"max_tokens": 4_000},
    {"max_completion_tokens": 4_000},
    {"max_tokens": 500_000},
    {"logprobs": True, "top_logprobs": 2},
    {"reasoning_effort": "none"},
    {"reasoning_effort": "medium"},
    {"reasoning_effort": "xhigh"},
    {"thinking": {"type": "enabled"}},
    {"thinking": {"type": "disabled"}},
    {"enable_thinking": True},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tools": [_TOOL], "tool_choice": "auto"},
    {"response_format": {"type": "json_object"}},
)
"""Options of Chat Completions that some provider refuses."""


def mutate_reasoning(messages: list[Message], rng: Random) -> list[Message]:
    """Give answers reasoning in the fields of several servers, or take it from them."""
    changed = []
    for message in messages:
        if message.role != "assistant" or rng.random() < 0.4:
            changed.append(message)
            continue
        others: tuple[Part, ...] = tuple(part for part in message.parts if not isinstance(part, Thinking))
        field = rng.choice(("reasoning_content", "reasoning", ""))
        if field:
            thinking = Thinking(rng.choice(("look", " ", "")), ProviderSignature("openai-chat", "", field))
            others = (thinking, *others)
        if rng.random() < 0.15:
            others = (*others, Opaque("message.reasoning_details", Raw(b'[{"type":"reasoning.text","text":"look"}]')))
        changed.append(Message("assistant", others))
    return changed


def _choose_options(rng: Random, api: str, model: str) -> dict[str, Any]:
    if api == "anthropic":
        traits = get_claude_traits(model)
        is_manual = traits is not None and traits.manual_thinking and not traits.adaptive_thinking
        thinking = {"type": "enabled", "budget_tokens": 1_024} if is_manual else {"type": "adaptive"}
        return {"max_tokens": 4_096, "thinking": thinking}
    if api != "openai-chat":
        return {}
    options: dict[str, Any] = {}
    for _ in range(rng.randrange(4)):
        options.update(rng.choice(_CHAT_OPTIONS))
    if "max_tokens" in options:
        options.pop("max_completion_tokens", None)
    return options


@cache
def get_dialect(api: str, model: str, provider: str) -> Dialect:
    return get_target(api, model, provider=provider).dialect


def build_provider_request(seed: int, provider: str) -> tuple[str, str, bytes] | None:
    """Return API, model and body of request ``seed`` as it leaves Holdfast; None if it has nothing to say."""
    rng = Random(f"{provider} {seed}")
    pairs = PROVIDER_MODELS[provider]
    api, model = pairs[seed % len(pairs)]
    messages = mangle_conversation(rng, api)
    if api == "openai-chat":
        messages = mutate_reasoning(messages, rng)
    if not any(map(has_nonblank_content, messages)):
        return None
    dialect = get_dialect(api, model, provider)
    options = _choose_options(rng, api, model)
    if provider == "vertex" and api == "anthropic":
        options["anthropic_version"] = "vertex-2023-10-16"
    sized_messages = [SizedMessage(message) for message in messages]
    if rng.random() < 0.5:
        edits = normalize_history(messages, dialect)
        body = build_request_body(api, model, apply_normalization(sized_messages, edits), setup_fields=options)
    else:
        # A client of this API cannot have sent what no body of it can hold.
        own_messages = [SizedMessage(drop_unsupported_parts(message, api)) for message in messages]
        parsed = parse_request(build_request_body(api, model, own_messages, setup_fields=options), api)
        if not any(has_nonblank_content(sized.message) for sized in parsed.messages):
            return None
        client_messages = [sized.message for sized in parsed.messages]
        edits = normalize_history(client_messages, dialect, has_system_field=not dialect.has_system_field)
        body = render_request(parsed, apply_normalization(list(parsed.messages), edits))
    fields = parse_body_fields(body)
    return api, model, apply_option_fixes(body, fields, find_option_fixes(api, fields, model, dialect))


@cache
def get_strict_provider(name: str) -> Provider:
    """Return the strict provider in the role of the server ``name``."""
    # The histories contain signatures of other providers, made over other prefixes.
    return Provider(
        ProviderSettings(server=name, window=2_000_000, accepted_seals="any", binds_thinking="never", tokenizer="words")
    )


def is_missing_thinking(message: str) -> bool:
    """Return whether an old Claude expects thinking that the history lacks: normalization does not see the option."""
    return "Expected `thinking`" in message


def find_refusals(provider: str, first_seed: int, count: int) -> Iterator[tuple[int, str]]:
    """Yield the seed of each refused request of ``provider`` from ``first_seed`` on, with the refusal."""
    strict = get_strict_provider(provider)
    for seed in range(first_seed, first_seed + count):
        request = build_provider_request(seed, provider)
        if request is None:
            continue
        api, model, body = request
        reply = strict.answer_body(api, body, model=model)
        strict.requests.clear()
        if isinstance(reply, RefusalReply) and not is_missing_thinking(reply.message):
            yield seed, reply.message


def _read_finished(path: Path | None) -> set[tuple[str, int]]:
    if path is None or not path.exists():
        return set()
    finished = set()
    for line in path.read_text().splitlines():
        record = json.loads(line)
        finished.add((record["provider"], record["seed"]))
    return finished


def main() -> int:
    """Check many requests and print the refusals; return 1 if there is any, otherwise 0."""
    parser = argparse.ArgumentParser(
        prog="python tests/support/provider_fuzzer.py", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--count", type=int, default=BATCH, help="requests for each provider")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--provider", action="append", choices=sorted(PROVIDER_MODELS))
    parser.add_argument("--progress", type=Path, help="file with the batches that are done")
    parser.add_argument("--most", type=int, default=10, help="refusals to print for each provider")
    args = parser.parse_args()
    finished = _read_finished(args.progress)
    total = refused = 0
    for provider in args.provider or PROVIDER_MODELS:
        shown, began = 0, time.perf_counter()
        for seed in range(args.seed, args.seed + args.count, BATCH):
            size = min(BATCH, args.seed + args.count - seed)
            total += size
            if (provider, seed) in finished:
                continue
            refusals = list(find_refusals(provider, seed, size))
            refused += len(refusals)
            for number, message in refusals[: max(0, args.most - shown)]:
                sys.stdout.write(f"{provider} {number}: {message}\n")
            shown += len(refusals)
            if args.progress is not None:
                record = {"provider": provider, "seed": seed, "count": size, "refused": len(refusals)}
                with args.progress.open("a") as file:
                    file.write(json.dumps(record) + "\n")
        sys.stderr.write(f"{provider}: {args.count:,} requests, {shown} refused, {time.perf_counter() - began:.0f} s\n")
    sys.stderr.write(f"{total:,} requests from seed {args.seed}: {refused} refused\n")
    return int(refused > 0)


if __name__ == "__main__":
    sys.exit(main())
