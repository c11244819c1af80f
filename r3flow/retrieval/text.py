"""How passages and queries become words for BM25, the same when an index is built and when it is searched."""

from __future__ import annotations

import re
import unicodedata

from bm25s.stopwords import STOPWORDS_EN

from r3flow.trajectory import Passage

_WORD = re.compile(r"(?u)\b\w\w+\b")
_STOPWORDS = {"en": frozenset(STOPWORDS_EN)}


def indexed_text(passage: Passage) -> str:
    """What of a passage is searched: title, newline, text."""
    return f"{passage.title}\n{passage.text}"


def words(text: str, stopwords: str | None) -> list[str]:
    """Lower-case words of two characters or more, without stop words ("en", or None for none)."""
    dropped = _STOPWORDS[stopwords] if stopwords else frozenset()
    return [word for word in _WORD.findall(unicodedata.normalize("NFKC", text).lower()) if word not in dropped]
