"""From a trajectory to token ids and back to nothing: the one place where text becomes ids.

A trajectory is one append-only stream: prompt ids, then policy turns and environment blocks by turns. Each segment is encoded on its
own and appended; nothing is decoded and encoded again, so SFT, rollouts, rewards and the losses see the same ids and the same mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from r3flow.errors import ConfigError
from r3flow.protocol.base import StepProtocol, folded, segments
from r3flow.trajectory import Trajectory

_BYTE = re.compile(r"<0x[0-9a-f]{2}>")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A trajectory as ids. `mask` (as long as `completion_ids`) is 1 on policy tokens, 0 on environment tokens.

    `step_ends` are the places in `completion_ids` of each step's last policy token (the end-of-text token).
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    step_ends: list[int]


class TokenStream:
    """Encodes the three kinds of segment with one tokenizer. Raises ConfigError if the tokenizer has no end-of-text token."""

    def __init__(self, tokenizer: Any, protocol: StepProtocol) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("policy.base: its tokenizer has no end-of-text token (eos_token); a turn could never end")
        self.tokenizer, self.protocol = tokenizer, protocol
        self.eos: int = tokenizer.eos_token_id
        special = {place for place, token in tokenizer.added_tokens_decoder.items() if token.special} | set(tokenizer.all_special_ids)
        self._special = (special - {tokenizer.unk_token_id}) | {self.eos}
        self._has_bytes = tokenizer.convert_tokens_to_ids("<0x0A>") not in (None, tokenizer.unk_token_id)

    def _plain(self, text: str) -> list[int]:
        """Text as text: a special token that is spelled out in it ("<|im_end|>" in a passage) does not become that token."""
        if self._has_bytes and _BYTE.search("".join(folded(text))):
            # "<0x0A>" may be a line break to a tokenizer with byte pieces, and "<0x3A>" a heading's colon
            text = re.sub("[<\ufe64\uff1c]", r"\g<0> ", text)
        ids = self._ids(text)
        # a model that looks for its longest pieces (Unigram) finds special ones in spite of the option
        return ids if self._special.isdisjoint(ids) else [part for token in ids for part in self._spelled(token)]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def _spelled(self, token: int) -> list[int]:
        """A special token letter by letter, any other one as it is."""
        if token not in self._special:
            return [token]
        letters = str(self.tokenizer.convert_ids_to_tokens(token))
        return [part for letter in letters for part in self._ids(letter) if part not in self._special]

    def prompt_ids(self, question: str) -> list[int]:
        """The prompt, behind whatever the tokenizer puts before a text (a BOS, or nothing)."""
        return self.text_ids(self.protocol.prompt(question))

    def text_ids(self, text: str) -> list[int]:
        """Any text that a stream begins with, behind whatever the tokenizer puts before a text."""
        start = list(self.tokenizer("", add_special_tokens=True)["input_ids"])
        if start and start[-1] == self.eos and start[0] != self.tokenizer.bos_token_id:
            start = start[:-1]
        return start + self._plain(text)

    def policy_ids(self, text: str) -> list[int]:
        """One policy turn with its end-of-text token."""
        return [*self._plain(text), self.eos]

    def environment_ids(self, text: str) -> list[int]:
        """A block of retrieved documents. Never empty."""
        return self._plain(text)

    def encode(self, trajectory: Trajectory, max_characters: int) -> Encoded:
        """The whole stream of a trajectory; `max_characters` is the cut of each document."""
        first, *rest = segments(self.protocol, trajectory, max_characters)
        prompt = self.prompt_ids(trajectory.question.question)
        assert first.role == "prompt"
        completion: list[int] = []
        mask: list[int] = []
        ends: list[int] = []
        for segment in rest:
            if segment.role == "policy":
                ids = self.policy_ids(segment.text)
                ends.append(len(completion) + len(ids) - 1)
            else:
                ids = self.environment_ids(segment.text)
            completion += ids
            mask += [int(segment.role == "policy")] * len(ids)
        return Encoded(prompt, completion, mask, ends)
