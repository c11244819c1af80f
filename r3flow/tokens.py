"""From a trajectory to token ids and back to nothing: the one place where text becomes ids.

A trajectory is one append-only stream: prompt ids, then policy turns and environment blocks by turns. Each segment is encoded on its
own and appended; nothing is decoded and encoded again, so SFT, rollouts, rewards and the losses see the same ids and the same mask.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from r3flow.chat import ChatFrame, chat_frame
from r3flow.environment import limits_of
from r3flow.errors import ConfigError
from r3flow.params import QUESTION_PLACE, ProtocolParams
from r3flow.protocol.base import Block, Limits, StepProtocol, find_marks, folded, segments
from r3flow.trajectory import Passage, Trajectory

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
    """Encodes the three kinds of segment with one tokenizer. Without `settings`: plain prompts, documents whole.

    Raises ConfigError if the tokenizer has no end-of-text token, or no chat template that will do where `settings` ask for one.
    """

    def __init__(self, tokenizer: Any, protocol: StepProtocol, settings: ProtocolParams | None = None) -> None:
        if tokenizer.eos_token_id is None:
            raise ConfigError("policy.base: its tokenizer has no end-of-text token (eos_token); a turn could never end")
        self.tokenizer, self.protocol = tokenizer, protocol
        self.eos: int = tokenizer.eos_token_id
        special = {place for place, token in tokenizer.added_tokens_decoder.items() if token.special} | set(tokenizer.all_special_ids)
        self._special = (special - {tokenizer.unk_token_id}) | {self.eos}
        self._limits = Limits(sys.maxsize) if settings is None else limits_of(settings)
        self._instruction = settings.instruction if settings else None
        self._most = settings.max_documents_tokens if settings else None
        self._chat: ChatFrame | None = None
        if settings is not None and settings.prompt == "chat":
            self._chat = chat_frame(tokenizer, settings.system)
            # a role's marker need not be a special token to its tokenizer; to a chat it is one
            self._special |= self._chat.ids & set(tokenizer.added_tokens_decoder)
        if self._most is not None:
            empty = protocol.documents((), self._limits)
            frame = len(self._ids(empty.opening)) + len(self._ids(empty.closing))
            if frame >= self._most:
                raise ConfigError(
                    f"protocol.max_documents_tokens: {self._most} leave no room for a document: the frame alone has {frame}; raise it"
                )
        self._has_bytes = tokenizer.convert_tokens_to_ids("<0x0A>") not in (None, tokenizer.unk_token_id)

    def _plain(self, text: str) -> list[int]:
        """Text as text: a special token that is spelled out in it ("<|im_end|>" in a passage) does not become that token."""
        if self._has_bytes and _BYTE.search("".join(folded(text))):
            # "<0x0A>" may be a line break to a tokenizer with byte pieces, and "<0x3A>" a heading's colon; all other brackets stay
            for place in find_marks(text, _BYTE, lambda match: match.start()):
                text = f"{text[: place + 1]} {text[place + 1 :]}"
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
        """The prompt: in the chat template's frame, or behind whatever the tokenizer puts before a text (a BOS, or nothing)."""
        own = self._instruction
        said = own and own.replace(QUESTION_PLACE, self.protocol.quoted(question))
        if self._chat is not None:
            return self._chat.head + self._plain(said or self.protocol.instruction(question)) + self._chat.tail
        return self.text_ids(said or self.protocol.prompt(question))

    def begun_ids(self, text: str, begun: str) -> list[int]:
        """A prompt of your own text with the beginning of what is to follow: in a chat the user says `text`, and the turn begins so."""
        if self._chat is not None:
            return self._chat.head + self._plain(text) + self._chat.tail + self._plain(begun)
        return self.text_ids(text + begun)

    def text_ids(self, text: str) -> list[int]:
        """Any text that a stream begins with, behind whatever the tokenizer puts before a text."""
        start = list(self.tokenizer("", add_special_tokens=True)["input_ids"])
        if start and start[-1] == self.eos and start[0] != self.tokenizer.bos_token_id:
            start = start[:-1]
        return start + self._plain(text)

    def policy_ids(self, text: str) -> list[int]:
        """One policy turn, with its end-of-text token unless one of the protocol's stops ends it."""
        stopped = bool(self.protocol.stops) and text.endswith(self.protocol.stops)
        return self._plain(text) if stopped else [*self._plain(text), self.eos]

    def environment_ids(self, text: str, last: int | None = None) -> list[int]:
        """What the environment says behind a turn whose last id is `last` (None: it ended as the protocol's turns do). Never empty."""
        return self._as_turn(self._plain(text), last)

    def documents_ids(self, passages: Sequence[Passage], last: int | None = None) -> list[int]:
        """A block of retrieved documents, of at most `max_documents_tokens` with its frame, which is never cut. Never empty."""
        return self._block_ids(self.protocol.documents(passages, self._limits), last)

    def _block_ids(self, block: Block, last: int | None) -> list[int]:
        ids = self._plain(block.text)
        if self._most is not None and len(ids) > self._most:
            opening, body, closing = map(self._plain, (block.opening, block.body, block.closing))
            ids = opening + body[: max(0, self._most - len(opening) - len(closing))] + closing
        return self._as_turn(ids, last)

    def _as_turn(self, ids: list[int], last: int | None) -> list[int]:
        """In a chat the environment speaks as the user behind an end-of-text, and in the assistant's own turn behind one of the stops.

        A turn that was cut gets its end-of-text from the environment, where the protocol has no stops.
        """
        if self._chat is None:
            return ids
        ended = not self.protocol.stops if last is None else last == self.eos
        if not ended and self.protocol.stops:
            return ids
        return [*([] if ended else [self.eos]), *self._chat.between, *ids, *self._chat.tail_again]

    def encode(self, trajectory: Trajectory) -> Encoded:
        """The whole stream of a trajectory."""
        first, *rest = segments(self.protocol, trajectory, self._limits)
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
                last = completion[-1]
                ids = self.environment_ids(segment.text, last) if segment.block is None else self._block_ids(segment.block, last)
            completion += ids
            mask += [int(segment.role == "policy")] * len(ids)
        return Encoded(prompt, completion, mask, ends)


_HOLDING: WeakKeyDictionary[Any, dict[tuple[int, frozenset[str]], frozenset[int]]] = WeakKeyDictionary()
"""For a tokenizer that is alive, what `_holding` found, by the size of its vocabulary (tokens may be added) and the characters."""


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _holding(tokenizer: Any, characters: frozenset[str]) -> frozenset[int]:
    """The tokens whose text holds one of `characters`. A large vocabulary takes a second, and every batch of rollouts asks."""
    found, key = _HOLDING.setdefault(tokenizer, {}), (len(tokenizer), characters)
    if key not in found:
        found[key] = frozenset(token for token in range(len(tokenizer)) if not characters.isdisjoint(_text(tokenizer, [token])))
    return found[key]


class Stops:
    """Tells when a turn has come to one of a protocol's stops, from its ids alone."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        """`stops` are ASCII; every token of the vocabulary is looked at once in a tokenizer's life."""
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        # a stop can only be complete after a token that holds its last character
        self._candidates = _holding(tokenizer, frozenset(stop[-1] for stop in stops))
        # every token before the last one of a stop holds one character of it at least
        self._reach = max(map(len, stops), default=0)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether the last token of `ids` completes a stop."""
        if ids[-1] not in self._candidates:
            return False
        tail = _text(self._tokenizer, ids[-self._reach :])
        return any(stop in tail for stop in self._stops)
