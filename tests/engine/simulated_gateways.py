"""Gateways in front of the strict provider, for tests of what they make of its refusals."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply, TokenUse


class Silent:
    """A gateway that makes an empty success of every refusal, and counts ``read`` tokens for it (as LiteLLM does)."""

    def __init__(self, provider, read=1) -> None:
        self.provider, self.read = provider, read
        self.settings, self.requests = provider.settings, provider.requests
        self.silent = 0
        """How often it said nothing."""

    def answer(self, asked):
        """Return the provider's answer, or nothing where it refuses."""
        reply = self.provider.answer(asked)
        if not isinstance(reply, RefusalReply):
            return reply
        self.silent += 1
        return ModelAnswer(f"msg_{self.silent}", "house-model", (), "end", TokenUse(self.read, self.read))


class Full:
    """A server that reads what fills its window, and ends the answer at its first token as too long (Xiaomi MiMo)."""

    def __init__(self, provider, made=0) -> None:
        self.provider, self.made = provider, made
        self.settings, self.requests = provider.settings, provider.requests
        self.full = 0
        """How often there was no room for an answer."""

    def answer(self, asked):
        """Return the provider's answer, or the beginning of none where it refuses."""
        reply = self.provider.answer(asked)
        if not isinstance(reply, RefusalReply):
            return reply
        self.full += 1
        used = TokenUse(self.settings.window - self.made, self.made)
        return ModelAnswer(f"msg_{self.full}", "house-model", (), "length", used)


class Uncached:
    """A gateway that counts what is new in each request alone: the rest its cache held."""

    def __init__(self, provider) -> None:
        self.provider = provider
        self.settings, self.requests = provider.settings, provider.requests
        self._before = 0

    def answer(self, asked):
        """Return the provider's answer with another count."""
        reply = self.provider.answer(asked)
        if isinstance(reply, RefusalReply):
            return reply
        counted, self._before = reply.usage.total_input - self._before, reply.usage.total_input
        return replace(reply, usage=TokenUse(counted, reply.usage.output))
