"""What the simulated endpoint "knows" and how it errs: the demo's stand-in for a large teacher and judge.

It is given what DeepSeek would be given, the text of a prompt, and returns text. It looks the question up in the plans of the
generated world, reads from the transcript what has been found, and writes the next step; at rates set in `params.simulated` it
errs on purpose. Its errors are a function of (seed, question, attempt, step), never of the order in which requests arrive.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

from r3flow.data.encyclopedia import RELATIONS, compare, state
from r3flow.params import Simulated
from r3flow.protocol.r3rag import ANSWER, DOCUMENTS, QUERY, QUESTION, neutralise

REVISION = 2
"""Raise it when any answer to a prompt changes: as a part of the endpoint's identity, it keeps the answers of older code apart."""

Hop = tuple[str, str, str]

NEED = "I need the {relation} of {subject}."
MISSED = "The documents do not tell the {relation} of {subject}."
SECOND = "The second is {subject}."
CHECK = "I check the {relation} of {subject}."


def phrases() -> list[str]:
    """Every wording of the teacher with plain fillers, for a tokenizer's vocabulary."""
    fill = {"relation": "director", "subject": "Red Rose"}
    texts = [text.format(**fill) for text in (NEED, MISSED, SECOND, CHECK)] + ["none found", "I can not find it."]
    return [f" {text}" for text in texts] + [f" {relation}" for kind in RELATIONS.values() for relation in kind]


def _field(prompt: str, name: str) -> str:
    match = re.search(rf"^{re.escape(name)} ?(.*)$", prompt, re.MULTILINE)
    return match.group(1).strip() if match else ""


def _listed(prompt: str, name: str) -> list[str]:
    """The `- ...` lines below the line `name`."""
    items: list[str] = []
    inside = False
    for line in prompt.split("\n"):
        if inside and line.startswith("- "):
            items.append(line[2:].strip())
        else:
            inside = line.strip() == name
    return items


class Mind:
    """Plans of a world (question text -> chains, see `World.knowledge`); to teach, also error rates and a seed."""

    def __init__(self, knowledge: dict[str, Any], rates: Simulated | None, seed: int | str) -> None:
        self.plans = {neutralise(text): plan for text, plan in knowledge.items()}
        self.rates, self.seed = rates, seed

    def teach(self, prompt: str, attempt: int) -> str | None:
        """The next step of the transcript that begins with the last "The question:" of `prompt`; None from a mind without error rates."""
        if self.rates is None:
            return None
        start = prompt.rfind(QUESTION)
        transcript = prompt[start:]
        question = _field(transcript, QUESTION)
        queries = re.findall(rf"^{re.escape(QUERY)} ?(.*)$", transcript, re.MULTILINE)
        number = len(queries) + 1
        plan = self.plans.get(question)
        if plan is None:
            return f"Step {number}:\nThe problem analysis: I can not find it.\n{ANSWER} unknown"
        shown = re.findall(rf"^{re.escape(DOCUMENTS)} ?(.*)$", transcript, re.MULTILINE)
        rng = random.Random(f"{self.seed}/{question}/{attempt}/{number}")
        fate = random.Random(f"{self.seed}/{question}/{attempt}")
        analysis, last = self._next(plan, queries, shown, self.rates, rng, fate)
        return f"Step {number}:\nThe problem analysis: {analysis}\n{last}"

    def _next(
        self, plan: dict[str, Any], queries: list[str], shown: list[str], rates: Simulated, rng: random.Random, fate: random.Random
    ) -> tuple[str, str]:
        chains: list[list[Hop]] = [[tuple(hop) for hop in chain] for chain in plan["chains"]]
        hops = [hop for chain in chains for hop in chain]
        found = _found(hops, shown)
        before = _found(hops, shown[:-1])
        said: list[str] = []
        if queries and found > before:
            said.append(_statement(hops[found - 1]))
        elif queries:
            # a needless search looks at a page that is known already; anything else missed
            target = hops[min(found, len(hops) - 1)]
            again = found and queries[-1].startswith(hops[found - 1][0])
            said.append(_statement(hops[found - 1]) if again else MISSED.format(relation=target[1], subject=target[0]))
        gives_up = len(hops) >= 4 and fate.random() < rates.fails_four_hops
        if found == len(hops):
            if rng.random() < rates.needless_search and queries and found > before:
                return self._check(said, hops[-1])
            return self._conclude(plan, chains, said)
        if found and ((gives_up and found >= 2) or rng.random() < rates.early_answer):
            # what it read last, even where one of two names is asked for: a guess would be right half the time, pass the filter, and teach
            # to guess
            return " ".join(said), f"{ANSWER} {hops[found - 1][2]}"
        if found > before and rng.random() < rates.needless_search:
            return self._check(said, hops[found - 1])
        subject, relation, _ = hops[found]
        if len(chains) > 1 and found == len(chains[0]):
            said.append(SECOND.format(subject=subject))
        said.append(NEED.format(relation=relation, subject=subject))
        missed = bool(queries) and found == before
        scale = 1 / 3 if missed else 1.0
        draw = rng.random()
        if draw < scale * rates.vague_query:
            query = f"the {relation}"
        elif draw < scale * (rates.vague_query + rates.partial_query):
            query = f"{subject.split()[-1]} {relation}"
        else:
            query = f"{subject} {relation}"
        return " ".join(said), f"{QUERY} {query}"

    def _check(self, said: list[str], hop: Hop) -> tuple[str, str]:
        said = [*said, CHECK.format(relation=hop[1], subject=hop[0])]
        return " ".join(said), f"{QUERY} {hop[0]} {hop[1]}"

    def _conclude(self, plan: dict[str, Any], chains: list[list[Hop]], said: list[str]) -> tuple[str, str]:
        if len(chains) > 1:
            said = [*said, compare(plan["earlier"], chains[0][0][0], chains[0][-1][2], chains[1][0][0], chains[1][-1][2])]
        return " ".join(said), f"{ANSWER} {plan['answer']}"

    def judge_answer(self, prompt: str) -> str:
        """Right if the prediction is a gold answer, or holds one as a whole phrase and is not much longer."""
        prediction = " ".join(_field(prompt, "Prediction:").lower().rstrip(".").split())
        golds = [" ".join(gold.lower().split()) for gold in _listed(prompt, "Gold answers:")]
        right = any(
            re.search(rf"(?<!\w){re.escape(gold)}(?!\w)", prediction) and len(prediction.split()) <= len(gold.split()) + 3 for gold in golds
        )
        return json.dumps({"correct": right})

    def judge_relevance(self, prompt: str) -> str:
        """1 if the first passage found is a supporting one that was not seen before, .5 if another one of them is, else 0."""
        plan = self.plans.get(_field(prompt, "Question:"))
        if plan is None:
            return json.dumps({"relevance": 0.0})
        gold = {neutralise(hop[0]) for chain in plan["chains"] for hop in chain} - set(_listed(prompt, "Passages seen before:"))
        found = [line.split(": ", 1)[0] for line in _listed(prompt, "Passages found:")]
        return json.dumps({"relevance": 1.0 if found and found[0] in gold else 0.5 if gold & set(found) else 0.0})


def _statement(hop: Hop) -> str:
    return state(hop[1], hop[0], hop[2])


def _found(hops: list[Hop], shown: list[str]) -> int:
    """How many hops, from the first, the documents shown settle: a hop is settled by its subject's page."""
    pages = " ".join(shown)
    count = 0
    for subject, _, _ in hops:
        if not re.search(rf"\[\d+\] {re.escape(neutralise(subject))}: ", pages):
            break
        count += 1
    return count
