"""The simulated teacher and judge answer as their revision says: a changed answer needs a new revision, or the ledger gives the old one."""

from __future__ import annotations

from collections.abc import Iterator

from r3flow.files import digest
from r3flow.params import Simulated
from r3flow.simulated.mind import REVISION, Mind

ANSWERS = {1: "df8e3bd0b7c27a1c7fffb67de88e607f", 2: "9b839326d9edb6189670b0e5893ce583"}
"""Revision -> digest of its answers. When the answers are meant to change, raise `REVISION` and put the new pair here."""

# Written out here, not generated: another world is another identity anyway, and must not look like another revision.
RED = [["Red Rose", "director", "Ann Lee"], ["Ann Lee", "birthplace", "Port Karl"], ["Port Karl", "country", "Norland"]]
LONG = [
    ["Old Gate", "producer", "Hill Works"],
    ["Hill Works", "founder", "Bo Dale"],
    ["Bo Dale", "spouse", "Isa Ley"],
    ["Isa Ley", "birthplace", "Lake Tor"],
]
YEARS = [[["Red Rose", "release year", "1950"]], [["Old Gate", "release year", "1921"]]]
BRIDGES = [
    [["Red Rose", "director", "Ann Lee"], ["Ann Lee", "birth year", "1911"]],
    [["Old Gate", "director", "Bo Dale"], ["Bo Dale", "birth year", "1899"]],
]
WORLD = {
    "Where was the director of Red Rose born?": {"chains": [RED[:2]], "earlier": False, "answer": "Port Karl"},
    "In which country was the director of Red Rose born?": {"chains": [RED], "earlier": False, "answer": "Norland"},
    "Where was the spouse of the founder of the producer of Old Gate born?": {"chains": [LONG], "earlier": False, "answer": "Lake Tor"},
    "Which came first, Red Rose or Old Gate?": {"chains": YEARS, "earlier": True, "answer": "Old Gate"},
    "Which has the younger director, Red Rose or Old Gate?": {"chains": BRIDGES, "earlier": False, "answer": "Red Rose"},
}
PAGES = ["Red Rose", "Ann Lee", "Port Karl", "Old Gate", "Hill Works", "Bo Dale", "Isa Ley"]
ATTEMPTS, STEPS = 40, 10


def dialogues(mind: Mind) -> Iterator[str]:
    """Every reply of the teacher, to each question in `ATTEMPTS` attempts; a query that names a page finds that page and no other."""
    for question in [*WORLD, "Who is unknown here?"]:
        for attempt in range(ATTEMPTS):
            transcript = f"The question: {question}\n"
            for _ in range(STEPS):
                reply = mind.teach(transcript, attempt)
                assert reply is not None
                yield reply
                last = reply.split("\n")[-1]
                if not last.startswith("The retrieval query:"):
                    break
                page = next((page for page in PAGES if page in last), None)
                found = f"[1] {page}: about it" if page else "none found"
                transcript += f"{reply}\nThe retrieval documents: {found}\n"


def judgements(mind: Mind) -> Iterator[str]:
    """Replies of the judge: to pages seen and unseen, first and second, and to answers right, wordy, wrong and empty."""
    for question in [*WORLD, "Who is unknown here?"]:
        for seen in ("", "- Red Rose\n"):
            for first, second in zip(PAGES, PAGES[1:] + PAGES[:1], strict=True):
                yield mind.judge_relevance(
                    f"Task: relevance\nQuestion: {question}\nPassages seen before:\n{seen}Analysis: a\nQuery: q\n"
                    f"Passages found:\n- {first}: text\n- {second}: text"
                )
        for said in ("Norland", "norland.", "It is Norland", "It is in the far land of Norland", "Norlander", "Port  Karl", ""):
            yield mind.judge_answer(f"Task: answer\nQuestion: {question}\nGold answers:\n- Norland\n- Port Karl\nPrediction: {said}")


def answers() -> list[str]:
    rates = Simulated(partial_query=0.3, vague_query=0.1, needless_search=0.2, early_answer=0.1, fails_four_hops=0.4)
    mind = Mind(WORLD, rates, 3)
    return [*dialogues(mind), *judgements(mind)]


def test_changed_answers_have_a_new_revision():
    assert ANSWERS.get(REVISION) == digest(answers()), "the answers changed: raise REVISION in r3flow/simulated/mind.py, and note it above"


def test_the_answers_cover_what_the_mind_can_say():
    said = answers()
    for part in ("I need the", "do not tell", "The second is", "I check the", "I can not find it.", "The later is", "The earlier is"):
        assert any(part in reply for reply in said), part
    for judgement in ("1.0", "0.5", "0.0", "true", "false"):
        assert any(reply.endswith(f": {judgement}}}") for reply in said), judgement
