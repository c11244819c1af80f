"""The texts that the teacher and the judge are sent. The wording lies beside this file in `prompts/`; it is read once.

The system message is the same in every call of a role, so that a provider's prompt cache holds it. Everything that came from a
corpus or a model is put on one line of its own: it can not forge a line of the form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from r3flow.errors import ConfigError
from r3flow.protocol.base import squeeze
from r3flow.trajectory import Passage, Step


@cache
def text(name: str) -> str:
    """The prompt file `name` without the white space around it."""
    try:
        return (files("r3flow.llm") / "prompts" / f"{name}.txt").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise ConfigError(f"r3flow/llm/prompts/{name}.txt: no such prompt; the teacher has none for this protocol yet") from None


def teacher(protocol: str) -> str:
    """The teacher's system message: instructions and examples in the form of `protocol` (its name)."""
    return text(f"teacher_{protocol}")


def relevance(question: str, earlier: Sequence[Step], step: Step, max_characters: int | None = None) -> str:
    """The judge's user message: how much do the passages of `step` help, given what was seen before?

    Passages are cut where the policy's are, so that nothing is graded that the policy was not shown.
    """
    seen = dict.fromkeys(_title(hit.passage) for past in earlier for hit in past.hits)
    found = [f"- {f'{_title(hit.passage)}: {squeeze(hit.passage.text)}'[:max_characters].rstrip()}" for hit in step.hits]
    return "\n".join(
        [
            "Task: relevance",
            f"Question: {squeeze(question)}",
            "Passages seen before:",
            *[f"- {title}" for title in seen],
            f"Analysis: {squeeze(step.analysis)}",
            f"Query: {squeeze(step.query or '')}",
            "Passages found:",
            *found,
        ]
    )


def _title(passage: Passage) -> str:
    """A title that ends where it seems to: ": " parts it from the text, and a title that held one could pass for another passage's."""
    return re.sub(r" ?:(?= )", " -", squeeze(passage.title))


def verdict(question: str, answers: Sequence[str], prediction: str) -> str:
    """The judge's user message: does `prediction` mean the same as one of `answers`?"""
    golds = [f"- {squeeze(answer)}" for answer in answers]
    return "\n".join(["Task: answer", f"Question: {squeeze(question)}", "Gold answers:", *golds, f"Prediction: {squeeze(prediction)}"])
