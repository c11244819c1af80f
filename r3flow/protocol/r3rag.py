"""R3-RAG's step format: headings, an analysis, then a retrieval query or a final answer (paper section 3.1, figure 2).

    The question: Where was the director of Red Harbor born?
    Step 1:
    The problem analysis: I need the director of Red Harbor.
    The retrieval query: Red Harbor director
    The retrieval documents: [1] Red Harbor: Red Harbor is a film directed by ...
    Step 2:
    ...
    The final answer: Port Ashel

Headings count only where the policy wrote them and at the start of a line. Documents are one line, and a heading inside them is
broken up, so that retrieved text can neither end a step nor look like one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from r3flow.protocol.base import CUT, Block, Limits, StepProtocol, find_marks, one_line, squeeze
from r3flow.trajectory import InvalidStep, Passage, Step, unseen

QUESTION, ANALYSIS = "The question:", "The problem analysis:"
QUERY, DOCUMENTS, ANSWER = "The retrieval query:", "The retrieval documents:", "The final answer:"

_STEP = re.compile(r"Step (\d{1,9}):[ \t]*")
# in folded text; blanks may be missing, since an invisible character may stand for one
_MARKER = re.compile(r"(?:step\s*\d+|the\s*(?:question|problem\s*analysis|retrieval\s*(?:query|documents)|final\s*answer))\s*:")


def neutralise(text: str) -> str:
    """Break up every heading of this protocol in untrusted text: its colon becomes a dash. Idempotent, one line.

    A heading counts in whatever case, width and spacing, with any colon, and with invisible characters or accents in it (see `fold`): a
    tokenizer that normalises would read it as the real one. All other text stays as it is.
    """
    line = squeeze(text)
    for place in find_marks(line, _MARKER, lambda match: match.end() - 1):
        line = f"{line[:place].rstrip()} -{line[place + 1 :]}"
    return line


class R3RAG(StepProtocol):
    """The `r3rag` protocol. A step is numbered from 1 and its number is checked."""

    name = "r3rag"

    def quoted(self, question: str) -> str:
        return neutralise(question)

    def prompt(self, question: str) -> str:
        return f"{QUESTION} {self.quoted(question)}\n"

    def instruction(self, question: str) -> str:
        return self.prompt(question).rstrip("\n")

    def render_step(self, step: Step) -> str:
        last = f"{QUERY} {step.query}" if step.query is not None else f"{ANSWER} {step.answer}"
        return f"Step {step.number}:\n{ANALYSIS} {step.analysis}\n{last}"

    def documents(self, passages: Sequence[Passage], limits: Limits) -> Block:
        parts = [f"[{place}] {one_line(passage, limits.passage)}" for place, passage in enumerate(passages, 1)]
        # neutralised once more as a whole: a heading may only arise where two passages meet or where one was cut
        shown = neutralise(" ".join(parts)[: limits.total]) if parts else "none found"
        return Block(f"\n{DOCUMENTS} ", shown, "\n")

    def feedback(self, step: InvalidStep) -> str:
        return f"\nThis was no step, for it {step.reason}. Write step {step.number} again.\n"

    def parse(self, text: str, number: int, *, complete: bool = True) -> Step | InvalidStep:
        reason, step = self._read(text, number)
        if not complete:
            return InvalidStep(number, text, CUT)
        return step if step is not None else InvalidStep(number, text, reason)

    def _read(self, text: str, number: int) -> tuple[str, Step | None]:
        lines = text.strip().split("\n")
        heads = [match for line in lines if (match := _STEP.fullmatch(line))]
        if len(heads) != 1 or not _STEP.fullmatch(lines[0]):
            return f"needs exactly one line 'Step {number}:', at its start", None
        if int(heads[0].group(1)) != number:
            return f"is numbered {heads[0].group(1)}, expected {number}", None
        if any(line.startswith((DOCUMENTS, QUESTION)) for line in lines):
            return "writes a documents or question block of its own", None
        fields: dict[str, str] = {}
        current = None
        for line in lines[1:]:
            for heading in (ANALYSIS, QUERY, ANSWER):
                if line.startswith(heading):
                    if heading in fields:
                        return f"repeats '{heading}'", None
                    current, line = heading, line[len(heading) :]
                    fields[current] = ""
            if current is None:
                return f"has text before '{ANALYSIS}'", None
            fields[current] = f"{fields[current]}\n{line}".strip()
        if not fields.get(ANALYSIS):
            return "has no problem analysis", None
        if (QUERY in fields) == (ANSWER in fields):
            return "needs either a retrieval query or a final answer", None
        if next(iter(fields)) != ANALYSIS:
            return "puts the analysis last", None
        value = fields.get(QUERY, fields.get(ANSWER, ""))
        if unseen(value):
            return "has an empty query or answer", None
        if "\n" in value:
            return "has a query or answer of several lines", None
        if QUERY in fields:
            return "", Step(number, fields[ANALYSIS], query=value)
        return "", Step(number, fields[ANALYSIS], answer=value)
