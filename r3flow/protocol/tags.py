"""Protocols of tags, after Search-R1 and ReSearch: one stream of thoughts, searches, what they brought, and an answer.

    <think> I need the director of Red Harbor. </think>
    <search> Red Harbor director </search>

    <information>Doc 1(Title: Red Harbor) Red Harbor is a film directed by ...</information>

    <think> Ana Vell directed it. </think>
    <answer> Ana Vell </answer>

The first search or answer in a turn decides what the turn is, as in Search-R1; text around it is tolerated, but the step is then not
`tidy`. Tags inside of retrieved text are broken up, so it can neither end its block nor look like the policy's words. The wording of
the prompts is this project's own; the tags are those of the papers.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from r3flow.protocol.base import CUT, Block, Limits, StepProtocol, find_marks, one_line, squeeze
from r3flow.trajectory import InvalidStep, Passage, Step, unseen

_NAMES = "think|search|information|result|answer"
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>(.*)</think>\s*", re.DOTALL)
_TAG = re.compile(rf"</?(?:{_NAMES})>")
_TAG_START = re.compile(rf"<\s*/?\s*(?:{_NAMES})")
"""In folded text. The closing bracket is not waited for: a cut may have taken it."""
_NONE = "none found"


def neutralise(text: str) -> str:
    """Break up every tag of these protocols in untrusted text: its opening bracket becomes a round one. Idempotent; lines stay lines."""
    for place in find_marks(text, _TAG_START, lambda match: match.start()):
        text = f"{text[:place]}({text[place + 1 :]}"
    return text


class Tags(StepProtocol):
    """What `search_r1` and `research` share."""

    tolerant = True
    block: ClassVar[str]
    """The tag around retrieved documents."""
    form: ClassVar[str] = ""
    """What the policy is told of the answer's form, behind the words that name its tags."""

    @abstractmethod
    def _wrap(self, answer: str) -> str:
        """What stands inside of the answer's tags."""

    @abstractmethod
    def _unwrap(self, text: str) -> str | None:
        """The answer in what stood inside of the tags; None if there is none in the form that is wanted."""

    @abstractmethod
    def _rules(self) -> str:
        """What the policy is told, without the question."""

    def quoted(self, question: str) -> str:
        return neutralise(squeeze(question))

    def prompt(self, question: str) -> str:
        return f"{self.instruction(question)}\n"

    def instruction(self, question: str) -> str:
        return f"{self._rules()}\nQuestion: {self.quoted(question)}"

    def render_step(self, step: Step) -> str:
        tag, value = ("search", step.query) if step.query is not None else ("answer", self._wrap(step.answer or ""))
        return f"<think> {step.analysis} </think>\n<{tag}> {value} </{tag}>"

    def documents(self, passages: Sequence[Passage], limits: Limits) -> Block:
        lines = []
        for place, passage in enumerate(passages, 1):
            name = f"Doc {place}" if squeeze(passage.title) else f"Doc {place}: "
            lines.append(f"{name}{one_line(passage, limits.passage, '(Title: {}) ')}")
        body = neutralise("\n".join(lines)[: limits.total].rstrip()) if lines else _NONE
        return Block(f"\n\n<{self.block}>", body, f"</{self.block}>\n\n")

    def feedback(self, step: InvalidStep) -> str:
        return (
            f"\nThis turn {step.reason}. Write a query between <search> and </search>, or the answer between <answer> and "
            f"</answer>{self.form}, and try again.\n"
        )

    def parse(self, text: str, number: int, *, complete: bool = True) -> Step | InvalidStep:
        reason, step = self._read(text, number)
        if step is not None and complete:
            return step
        return InvalidStep(number, text, reason if complete else CUT)

    def _read(self, text: str, number: int) -> tuple[str, Step | None]:
        action = _ACTION.search(text)
        if f"<{self.block}>" in (text if action is None else text[: action.start()]):
            return f"writes a <{self.block}> block of its own", None
        if action is None:
            return "holds neither a whole search nor a whole answer", None
        before, after = text[: action.start()], text[action.end() :]
        tag, inside = action.group(1), action.group(2)
        if _TAG.search(inside):
            return f"holds a tag inside of <{tag}>", None
        value = squeeze(inside) if tag == "search" else self._unwrap(inside)
        if value is None:
            return "holds an answer that is not in the form asked for", None
        if unseen(value):
            return "holds an empty query or answer", None
        thought = _THOUGHT.fullmatch(before)
        tidy = thought is not None and not _TAG.search(thought.group(1)) and not after.strip()
        analysis = (thought.group(1) if thought and tidy else _TAG.sub(" ", before)).strip()
        step = Step(number, analysis, query=value) if tag == "search" else Step(number, analysis, answer=value)
        return "", step if tidy else replace(step, tidy=False)


class SearchR1(Tags):
    """The `search_r1` protocol (Search-R1, section 3.3 and table 1; the reference's loop in REFERENCE section 2)."""

    name = "search_r1"
    stops = ("</search>", "</answer>")
    block = "information"

    def _wrap(self, answer: str) -> str:
        return answer

    def _unwrap(self, text: str) -> str | None:
        return squeeze(text)

    def _rules(self) -> str:
        return (
            "Find the answer to the question below. Whenever you have learned something, first reason about it between <think> and "
            "</think>. If you lack a fact, put a query between <search> and </search>; a search engine replies with passages between "
            "<information> and </information>. Search as many times as you need. Once you are sure, give nothing but the short answer "
            "between <answer> and </answer>."
        )


class ReSearch(Tags):
    r"""The `research` protocol (ReSearch): the answer stands in \boxed{} and the last turn ends with end-of-text."""

    name = "research"
    stops = ("</search>",)
    block = "result"
    form = r", in the form \boxed{answer}"

    def _wrap(self, answer: str) -> str:
        return rf"\boxed{{{answer}}}"

    def _unwrap(self, text: str) -> str | None:
        start = text.rfind(r"\boxed{")
        if start < 0:
            return None
        depth = 0
        for place in range(start + len(r"\boxed"), len(text)):
            depth += (text[place] == "{") - (text[place] == "}")
            if not depth:
                return squeeze(text[start + len(r"\boxed{") : place])
        return None

    def _rules(self) -> str:
        return (
            "Solve the question below step by step. Put your reasoning between <think> and </think>. When a fact is missing, ask for it "
            "with a query between <search> and </search>; what the search engine finds is shown to you between <result> and </result>. At "
            f"the end give the short final answer between <answer> and </answer>{self.form}."
        )
