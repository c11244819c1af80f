"""The HTTP connections of a chat client.

httpcore's pool looks at every connection for every request, which at hundreds of connections costs more CPU than the request itself. So
the connections are kept in several small pools.
"""

from __future__ import annotations

import urllib.request
from itertools import cycle

import httpx2

SHARD = 16
"""Connections of one small pool, about."""
CONNECT_S = 10.0


def http_client(base_url: str, concurrency: int, timeout_s: float, *, use_proxies: bool) -> httpx2.AsyncClient:
    """A client for up to `concurrency` requests at once; each may be silent for `timeout_s`. Redirects are not followed.

    `use_proxies: False` ignores HTTP_PROXY and its like, which loopback must.
    """
    timeout = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s), pool=None)
    url = httpx2.URL(base_url)
    if use_proxies and url.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(url.host):
        limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        return httpx2.AsyncClient(timeout=timeout, limits=limits, follow_redirects=False)
    return httpx2.AsyncClient(timeout=timeout, transport=_Shards(concurrency), trust_env=False, follow_redirects=False)


class _Shards(httpx2.AsyncBaseTransport):
    """Pools taken in turn. The caller bounds how many requests run at once; a pool itself sets no bound."""

    def __init__(self, concurrency: int) -> None:
        context = httpx2.create_ssl_context()
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._pools = [httpx2.AsyncHTTPTransport(verify=context, limits=limits) for _ in range(-(-concurrency // SHARD))]
        self._turn = cycle(self._pools)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        return await next(self._turn).handle_async_request(request)

    async def aclose(self) -> None:
        for pool in self._pools:
            await pool.aclose()
