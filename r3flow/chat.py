"""What a model's chat template puts around a prompt and around what the environment says, as token ids.

The template is asked once, with placeholders, and cut where they stand: what is the template's becomes ids with its special tokens, what
comes from outside is encoded as plain text in between. So the token stream of a chat is append-only as well, and nothing that is
retrieved can hold a turn's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from r3flow.errors import ConfigError

_ASKED, _SAID, _SHOWN = "placeholder one", "placeholder two", "placeholder three"
_TODAY = "26 Jul 2024"
"""What a template takes for today: the date that Llama 3.1's falls back on. Templates that print the day would give other prompts every
day, and equal params must give equal ones."""
_PINNED = f"{{% macro strftime_now(format) %}}{_TODAY}{{% endmacro %}}{{{{ '' }}}}"
"""In front of a template: hides the library's clock. The empty text keeps the template's own first line break."""
_REMEDY = "use another model, or set protocol.prompt: plain"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Ids of a chat's fixed parts. A prompt is `head`, the instruction, `tail`; a user turn behind a policy turn is `between`, the text,
    `tail_again`. The policy turn's own end-of-text token is part of the policy turn.
    """

    head: list[int]
    tail: list[int]
    between: list[int]
    tail_again: list[int]

    @property
    def ids(self) -> set[int]:
        """All ids of the fixed parts."""
        return {*self.head, *self.tail, *self.between, *self.tail_again}


def chat_frame(tokenizer: Any, system: str | None) -> ChatFrame:
    """Read the tokenizer's template. Raises ConfigError if there is none, if it changes or drops earlier turns when a later one comes
    (some templates cut thoughts out of the history), or if a turn does not end with the tokenizer's end-of-text token.
    """
    if not tokenizer.chat_template:
        raise ConfigError("protocol.prompt: chat needs a model with a chat template, and policy.base has none; set protocol.prompt: plain")
    said = {"role": "assistant", "content": _SAID}
    first = _render(tokenizer, system, [])
    second = _render(tokenizer, system, [said, {"role": "user", "content": _SHOWN}])
    start = first + _SAID
    if first.count(_ASKED) != 1 or second.count(_SHOWN) != 1:
        raise ConfigError(f"protocol.prompt: the chat template of policy.base does not show a user's message once, as it is; {_REMEDY}")
    if system and system not in first:
        raise ConfigError(f"protocol.system: the chat template of policy.base does not show it; set it to null, or {_REMEDY}")
    if not second.startswith(start):
        raise ConfigError(
            "protocol.prompt: the chat template of policy.base rewrites earlier turns when another one comes (it is not "
            f"prefix-preserving), so that a trajectory is no append-only stream; {_REMEDY}"
        )
    between, tail_again = second[len(start) :].split(_SHOWN)
    end = str(tokenizer.eos_token)
    if not between.startswith(end):
        raise ConfigError(
            f"protocol.prompt: in the chat template of policy.base a turn does not end with the tokenizer's end-of-text token "
            f"{end!r}; {_REMEDY}"
        )
    head, tail = first.split(_ASKED)

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return ChatFrame(ids(head), ids(tail), ids(between[len(end) :]), ids(tail_again))


def _render(tokenizer: Any, system: str | None, rest: list[dict[str, str]]) -> str:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": _ASKED}, *rest]
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                chat_template=_PINNED + tokenizer.get_chat_template(),
                tokenize=False,
                add_generation_prompt=True,
                date_string=_TODAY,
            )
        )
    except (TemplateError, ValueError) as error:
        raise ConfigError(f"protocol.prompt: the chat template of policy.base refuses the messages: {error}; {_REMEDY}") from None
