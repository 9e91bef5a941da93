"""Gateways in front of the strict provider that hide its refusals or count tokens in their own way."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.testing.provider.calls import ModelAnswer, RefusalReply, TokenUse


class EmptyAnswerGateway:
    """A gateway that turns every refusal into an empty success of ``input_tokens`` tokens (as LiteLLM does)."""

    def __init__(self, provider, input_tokens=1) -> None:
        self.provider, self.input_tokens = provider, input_tokens
        self.settings, self.requests = provider.settings, provider.requests
        self.empty_count = 0
        """The number of empty answers."""

    def answer(self, request):
        """Return the provider's answer, or an empty one instead of a refusal."""
        reply = self.provider.answer(request)
        if not isinstance(reply, RefusalReply):
            return reply
        self.empty_count += 1
        return ModelAnswer(
            f"msg_{self.empty_count}", "house-model", (), "end", TokenUse(self.input_tokens, self.input_tokens)
        )


class FullWindowServer:
    """A server that fills its window with the input and ends the answer at its first token (Xiaomi MiMo)."""

    def __init__(self, provider, output_tokens=0) -> None:
        self.provider, self.output_tokens = provider, output_tokens
        self.settings, self.requests = provider.settings, provider.requests
        self.full_count = 0
        """The number of answers without room."""

    def answer(self, request):
        """Return the provider's answer, or one cut at its start instead of a refusal."""
        reply = self.provider.answer(request)
        if not isinstance(reply, RefusalReply):
            return reply
        self.full_count += 1
        used = TokenUse(self.settings.window - self.output_tokens, self.output_tokens)
        return ModelAnswer(f"msg_{self.full_count}", "house-model", (), "length", used)


class UncachedCountGateway:
    """A gateway that counts only the new tokens of each request, as if the rest was cached."""

    def __init__(self, provider) -> None:
        self.provider = provider
        self.settings, self.requests = provider.settings, provider.requests
        self._previous_input = 0

    def answer(self, request):
        """Return the provider's answer with another count."""
        reply = self.provider.answer(request)
        if isinstance(reply, RefusalReply):
            return reply
        counted, self._previous_input = reply.usage.total_input - self._previous_input, reply.usage.total_input
        return replace(reply, usage=TokenUse(counted, reply.usage.output))
