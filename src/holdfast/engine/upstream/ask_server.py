"""Send a plain question to a server over the connections of an upstream, without its keys."""

from __future__ import annotations

import asyncio

import httpx2

MAX_ANSWER_BYTES = 4_000_000
"""Bytes of an answer that are read: a long list of models has some hundred thousand."""


async def ask_over_http(client: httpx2.AsyncClient, method: str, url: str, body: bytes, seconds: float) -> bytes:
    """Send a request without any of the client's own headers; return the body of a success, else nothing."""
    headers = {"accept": "application/json"}
    if body:
        headers["content-type"] = "application/json"
    request = httpx2.Request(
        method, url, headers=headers, content=body or None, extensions={"timeout": httpx2.Timeout(seconds).as_dict()}
    )
    async with asyncio.timeout(seconds):
        response = await client.send(request, stream=True, auth=None, follow_redirects=False)
        try:
            if response.status_code != 200:
                return b""
            content = b""
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    return b""
            return content
        finally:
            await response.aclose()
