"""The HTTP connections of a chat client: aiohttp's, which openai offers behind its own interface.

A call over httpcore's pools costs half as much CPU again (`benchmarks.chat_calls`, docs/LOG.md), and a pipeline with a teacher nearby
makes tens of thousands of calls. Proxies stay with httpx, which knows the forms of their addresses and exceptions.
"""

from __future__ import annotations

import urllib.request
from typing import Literal

import aiohttp
import httpx2
import openai

CONNECT_S = 10.0


def http_client(base_url: str, concurrency: int, timeout_s: float, *, use_proxies: bool) -> httpx2.AsyncClient:
    """A client for up to `concurrency` requests at once; each may be silent for `timeout_s`. Redirects are not followed.

    `use_proxies: False` ignores HTTP_PROXY and its like, which loopback must.
    """
    timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s), pool=None)
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    url = httpx2.URL(base_url)
    if use_proxies and url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(url.host):
        return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False)
    return openai.DefaultAioHttpClient(timeout=timeout, limits=limits, trust_env=False, follow_redirects=False)


def went_wrong(error: TimeoutError | openai.APIConnectionError) -> Literal["unreachable", "silent", "broken"]:
    """Why there is no response: no connection came about, nothing was sent on it for too long, or it broke."""
    if isinstance(error, TimeoutError):  # of the whole call
        return "silent"
    cause = error.__cause__
    origin = None if cause is None else cause.__cause__
    named_rightly = (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError)
    if isinstance(origin, aiohttp.ClientConnectionError) and not isinstance(origin, named_rightly):
        return "broken"  # openai's adapter of aiohttp calls this a connect timeout
    if isinstance(cause, (httpx2.ConnectTimeout, httpx2.ConnectError)):
        return "unreachable"
    return "silent" if isinstance(cause, httpx2.TimeoutException) else "broken"
