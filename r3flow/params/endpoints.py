"""The sections that say whom to ask: the teachers and the judge, their prices, and how the stand-in errs."""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from r3flow.params.base import Attempts, Count, NonNegative, Positive, Rate, Section


class Price(Section):
    """US dollars for a million tokens. Prices change: date them in a comment."""

    cached_input: NonNegative = 0.0
    input: NonNegative = 0.0
    output: NonNegative = 0.0


def base_url_host(url: str, key: str = "base_url", like: str = "https://api.deepseek.com") -> str:
    """The host of a server's address. Raises ValueError unless it is a plain http or https address without user, query or fragment.

    `key` and `like` are how the error calls the setting, and its example of a right one.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises ValueError for a bad port
    except ValueError as error:
        raise ValueError(f"{key} {url!r} is no address: {error}") from None
    if "@" in parts.netloc:
        raise ValueError(f"{key} may not hold a user or password: secrets come from the environment alone (see api_key_env)")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or url != url.strip():
        raise ValueError(f"{key} {url!r} must look like {like}")
    return parts.hostname


_NOT_EXTRA = {"model", "messages", "stream", "n"}
"""Fields of a request that `extra_body` may not set: the ledger, the prices and the reader of replies rely on them."""


class Endpoint(Section):
    """An OpenAI-compatible server. `endpoint: simulated` is the stand-in that a stage starts itself on loopback."""

    endpoint: Literal["simulated", "openai"]
    base_url: str | None
    api_key_env: str
    model: str
    max_tokens: Count
    extra_body: dict[str, Any]
    concurrency: Annotated[int, Field(ge=1, le=4096)]
    timeout_s: Positive
    max_retries: Annotated[int, Field(ge=0, le=100)]
    budget_usd: Positive | None
    price_usd_per_million: Price

    @model_validator(mode="after")
    def _key_name(self) -> Endpoint:
        if self.api_key_env and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):
            # the value is not shown: it may be the key
            raise ValueError(
                "api_key_env must be the name of an environment variable, such as DEEPSEEK_API_KEY; a key itself belongs in no file"
            )
        return self

    @model_validator(mode="after")
    def _extra(self) -> Endpoint:
        taken = sorted(_NOT_EXTRA & self.extra_body.keys())
        if taken:
            raise ValueError(f"extra_body.{taken[0]}: cannot be set here; the model is `model`, the rest belongs to the stage")
        try:
            json.dumps(self.extra_body, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"extra_body: holds what JSON cannot ({error}); put quotation marks around dates") from None
        return self

    @model_validator(mode="after")
    def _url(self) -> Endpoint:
        if self.endpoint == "openai" and not self.base_url:
            raise ValueError("base_url is needed with endpoint: openai (for DeepSeek: https://api.deepseek.com)")
        if self.base_url is not None:
            base_url_host(self.base_url)
        return self


class Simulated(Section):
    partial_query: Rate
    vague_query: Rate
    needless_search: Rate
    early_answer: Rate
    fails_four_hops: Rate


class SecondTeacher(Endpoint):
    """A stronger server for the questions that the first teacher failed, and how often it may try each of them."""

    attempts: Attempts
    simulated: Simulated | None = None
    """How the stand-in errs, of its own; with `endpoint: simulated` alone."""

    @model_validator(mode="after")
    def _stand_in(self) -> SecondTeacher:
        if self.endpoint == "simulated" and self.simulated is None:
            raise ValueError(
                "simulated is needed with endpoint: simulated: the error rates of the second stand-in, with the keys of the first"
            )
        if self.endpoint != "simulated" and self.simulated is not None:
            raise ValueError("simulated holds the error rates of a stand-in; leave it out, or set endpoint: simulated")
        return self
