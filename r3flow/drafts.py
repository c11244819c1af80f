"""Drafts for speculative decoding without a second model: what followed the same last tokens before.

A policy that reads and cites repeats itself, its documents, and the other streams' phrases. A draft is checked by the policy in the same
pass that writes the next token, and kept only as far as the policy would have written just that (Leviathan et al. 2023, with the lookup
of n-grams in the place of a small model), so drafts change the speed and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

_ORDERS = (3, 2, 1)


class Drafts:
    """Remembers for each stream, and for what all streams wrote, which token came last behind each n-gram."""

    def __init__(self) -> None:
        self._own: dict[int, dict[tuple[int, ...], int]] = {}
        self._written: dict[tuple[int, ...], int] = {}
        self._tail: dict[int, list[int]] = {}

    def read(self, stream: int, ids: Iterable[int]) -> None:
        """The stream went on with `ids`, which somebody else wrote."""
        own = self._own.setdefault(stream, {})
        tail = self._tail.setdefault(stream, [])
        for token in ids:
            for order in range(1, len(tail) + 1):
                own[tuple(tail[-order:])] = token
            tail.append(token)
            del tail[: -_ORDERS[0]]

    def wrote(self, stream: int, token: int) -> None:
        """The stream wrote `token`."""
        own, tail = self._own[stream], self._tail[stream]
        for order in range(1, len(tail) + 1):
            key = tuple(tail[-order:])
            own[key] = self._written[key] = token
        tail.append(token)
        del tail[: -_ORDERS[0]]

    def propose(self, stream: int, most: int) -> list[int]:
        """At most `most` tokens that may come next: behind the longest n-gram that is known, the stream's own before the others'."""
        own, tail, draft = self._own[stream], list(self._tail[stream]), list[int]()
        while len(draft) < most:
            token = None
            for order in _ORDERS:
                key = tuple(tail[-order:])
                token = own.get(key)
                if token is None:
                    token = self._written.get(key)
                if token is not None:
                    break
            if token is None:
                break
            draft.append(token)
            tail.append(token)
        return draft
