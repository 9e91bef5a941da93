"""Errors in the form of Chat Completions."""

from __future__ import annotations

from typing import Any

from holdfast.providers.common.error_forms import ErrorForm, ErrorFormat
from holdfast.providers.common.openai.errors import OPENAI_ERROR_FORMS, word_overflow


def _build_body(form: ErrorForm, text: str, is_overflow: bool) -> dict[str, Any]:
    param = "messages" if is_overflow else None
    return {"error": {"message": text, "type": form.type, "param": param, "code": form.code}}


ERROR_FORMAT = ErrorFormat(OPENAI_ERROR_FORMS, word_overflow, _build_body)
