"""Reading what a chat endpoint sent back: the text, why it ended, and the tokens; anything else is named as unusable."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from r3flow.params import Price

FAILED = {"content_filter", "insufficient_system_resource", "tool_calls", "function_call"}
"""Finish reasons that mean "no answer". Servers use many words for a normal end, so the bad ones are listed."""


class UnusableError(ValueError):
    """The reply came through but holds no answer; asking again may help."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. `cached` is the part of `prompt` that the provider's prompt cache held."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0

    def cost_usd(self, price: Price) -> float:
        fresh = self.prompt - self.cached
        return (self.cached * price.cached_input + fresh * price.input + self.completion * price.output) / 1e6

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. `cut` is True if it ended at the token limit. `paid` is False if the ledger had it."""

    text: str
    cut: bool
    usage: Usage
    paid: bool = True


def read_completion(body: bytes) -> Completion:
    """Parse a chat completion; empty lines before it are allowed (DeepSeek keeps a connection open with them).

    Raises UnusableError with a short reason.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableError("a body that is not JSON") from None
    if not isinstance(value, dict):
        raise UnusableError("JSON that is no chat completion")
    choices = value.get("choices")
    if not isinstance(choices, list) or not choices:
        error = value.get("error")
        said = error.get("message") if isinstance(error, dict) else None
        raise UnusableError(f"no choices ({said})" if isinstance(said, str) else "no choices")
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        raise UnusableError("a choice without a message")
    finish, content = choice.get("finish_reason"), message.get("content")
    if finish in FAILED:
        raise UnusableError(f"finish reason '{finish}'")
    if content is None and finish == "length":
        content = ""  # all of the tokens went into reasoning
    if not isinstance(content, str):
        raise UnusableError("a message without text")
    # a lone surrogate is legal JSON but no text: it could be neither stored nor sent on
    return Completion(content.encode("utf-8", "replace").decode(), finish == "length", read_usage(value.get("usage")))


def read_usage(value: Any) -> Usage:
    """Tokens as OpenAI (`prompt_tokens_details.cached_tokens`) or DeepSeek (`prompt_cache_hit_tokens`) report them; 0 where unreported."""
    if not isinstance(value, dict):
        return Usage()
    details = value.get("prompt_tokens_details")
    cached = value.get("prompt_cache_hit_tokens")
    if cached is None and isinstance(details, dict):
        cached = details.get("cached_tokens")
    prompt = _count(value.get("prompt_tokens"))
    return Usage(prompt, min(_count(cached), prompt), _count(value.get("completion_tokens")))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
