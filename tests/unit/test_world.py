"""The demo world: solvable from its passages alone, disjoint splits, the same for the same seed; and the simulated mind."""

import json
import random
from collections import Counter

import pytest

from r3flow.data.names import KINDS, distinct, draw, half_of
from r3flow.data.pretrain import RECALL, REPETITION, counting_task, last_sample, pretraining_sample
from r3flow.data.world import MIX, generate_world
from r3flow.errors import ConfigError
from r3flow.params import Simulated
from r3flow.params import World as WorldParams
from r3flow.protocol import PROTOCOLS
from r3flow.simulated.mind import Mind
from r3flow.trajectory import Step

SIZE = WorldParams(train_questions=300, dev_questions=60, test_questions=80, passages=900)
NO_ERRORS = Simulated(partial_query=0.0, vague_query=0.0, needless_search=0.0, early_answer=0.0, fails_four_hops=0.0)
WORLD = generate_world(3, SIZE)
PAGES = {passage.title: passage for passage in WORLD.passages}


def test_the_same_seed_gives_the_same_world_and_another_seed_another():
    again, other = generate_world(3, SIZE), generate_world(4, SIZE)
    assert again == WORLD and other.passages != WORLD.passages


def test_every_hop_is_stated_by_its_subjects_page():
    for plan in WORLD.plans.values():
        for chain in plan.chains:
            for (subject, _, value), after in zip(chain, (*chain[1:], None), strict=True):
                assert value in PAGES[subject].text
                assert after is None or after[0] == value


def test_answers_follow_from_the_plans():
    for questions in WORLD.questions.values():
        for question in questions:
            plan = WORLD.plans[question.question]
            assert question.hops == plan.hops and len(question.gold_ids) <= plan.hops
            if plan.earlier is None:
                assert question.answers == (plan.chains[0][-1][2],)
            else:
                years = {chain[0][0]: int(chain[-1][2]) for chain in plan.chains}
                best = (min if plan.earlier else max)(years, key=years.get)
                assert question.answers == (best,)


def test_splits_share_no_entity():
    def entities(split):
        chains = [chain for question in WORLD.questions[split] for chain in WORLD.plans[question.question].chains]
        return {name for chain in chains for subject, _, value in chain for name in (subject, value) if not name.isdigit()}

    sets = [entities(split) for split in ("train", "dev", "test")]
    assert all(sets) and not sets[0] & sets[1] and not sets[0] & sets[2] and not sets[1] & sets[2]


def test_the_mix_of_types_is_as_stated_and_both_orders_win():
    counts = Counter((q.type, q.hops) for q in WORLD.questions["train"])
    assert sum(counts.values()) == 300
    for kind, hops, share in MIX:
        assert abs(counts[kind, hops] - 300 * share) <= 2
    firsts = [
        WORLD.plans[q.question].answer == WORLD.plans[q.question].chains[0][0][0]
        for q in WORLD.questions["train"]
        if "comparison" in q.type
    ]
    assert 0.35 < sum(firsts) / len(firsts) < 0.65


def test_titles_and_ids_are_unique():
    assert len(PAGES) == len(WORLD.passages) == len({p.id for p in WORLD.passages})


def test_too_large_a_world_is_refused_with_the_key():
    with pytest.raises(ConfigError, match=r"prepare\.world\.passages"):
        generate_world(1, WorldParams(train_questions=10, dev_questions=10, test_questions=10, passages=10**6))


def test_no_world_shares_a_name_with_the_pretraining_text():
    for kind in KINDS:
        assert all(half_of(name) == "world" for name in distinct(kind, random.Random(1), "world"))
        assert all(half_of(draw(kind, random.Random(i), "pretraining")) == "pretraining" for i in range(50))
    rng = random.Random(0)
    steps = (None, 0, REPETITION, RECALL)
    samples = [pretraining_sample(rng, step) for step in steps for _ in range(150)] + [last_sample(rng) for _ in range(150)]
    text = " ".join(part for sample in samples for part, _ in sample)
    names = [title for title in PAGES if " " in title]
    assert not [name for name in names if f" {name} " in text]


def test_the_counting_lesson_is_learned_on_the_numbers_that_follow_alone():
    for seed in range(100):
        pieces = counting_task(random.Random(seed))
        markers, fillers = pieces[::2], pieces[1::2]
        numbers = [int(text.removeprefix("Step ").removesuffix(":")) for text, _ in markers]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and 4 <= len(numbers) <= 7 and numbers[-1] <= 10
        assert [learned for _, learned in markers] == [False] + [True] * (len(numbers) - 1)
        assert all(text.endswith("\n") and not learned and "Step" not in text for text, learned in fillers)


def play(mind, question, attempt=0):
    """The teacher alone with an oracle retriever: the page with the longest title that begins the query."""
    protocol = PROTOCOLS["r3rag"]
    text = protocol.prompt(question.question)
    for number in range(1, 9):
        step = protocol.parse(mind.teach("Write the next step.\n\n" + text, attempt), number)
        assert isinstance(step, Step)
        text += protocol.render_step(step)
        if step.answer is not None:
            return step.answer, number, text
        titles = [title for title in PAGES if step.query.startswith(title + " ")]
        text += protocol.render_documents([PAGES[max(titles, key=len)]] if titles else [], 512)
    return None, number, text


def test_a_mind_without_errors_solves_every_question_in_hops_plus_one_steps():
    mind = Mind(json.loads(json.dumps(WORLD.knowledge())), NO_ERRORS, 0)
    for question in WORLD.questions["dev"]:
        answer, steps, text = play(mind, question)
        assert answer == question.answers[0], text
        assert steps <= question.hops + 1


def test_errors_are_a_function_of_seed_question_attempt_and_step():
    rates = NO_ERRORS.model_copy(update={"partial_query": 0.5, "early_answer": 0.3})
    one, two = Mind(WORLD.knowledge(), rates, 7), Mind(WORLD.knowledge(), rates, 7)
    questions = WORLD.questions["train"][:60]
    forward = [play(one, q)[2] for q in questions]
    backward = [play(two, q)[2] for q in reversed(questions)][::-1]
    assert forward == backward
    assert [play(one, q, attempt=1)[2] for q in questions] != forward


def test_each_error_rate_shows():
    questions = WORLD.questions["train"][:80]
    clean = sum(play(Mind(WORLD.knowledge(), NO_ERRORS, 1), q)[1] for q in questions)
    for key, rate in (("partial_query", 0.9), ("vague_query", 0.9), ("needless_search", 0.9)):
        mind = Mind(WORLD.knowledge(), NO_ERRORS.model_copy(update={key: rate}), 1)
        assert sum(play(mind, q)[1] for q in questions) > clean + 20, key
    early = Mind(WORLD.knowledge(), NO_ERRORS.model_copy(update={"early_answer": 0.9}), 1)
    assert sum(play(early, q)[0] != q.answers[0] for q in questions) > 20
    four = Mind(WORLD.knowledge(), NO_ERRORS.model_copy(update={"fails_four_hops": 1.0}), 1)
    long = [q for q in questions if q.hops == 4 and q.type == "compositional"]
    assert long and all(play(four, q)[0] != q.answers[0] for q in long)


def test_the_mind_judges_relevance_by_new_supporting_passages():
    mind = Mind(WORLD.knowledge(), NO_ERRORS, 0)
    question = next(q for q in WORLD.questions["train"] if q.hops == 2 and q.type == "compositional")
    first, second = (hop[0] for hop in WORLD.plans[question.question].chains[0])
    other = next(title for title in PAGES if title not in (first, second))

    def judge(seen, found):
        lines = ["Task: relevance", f"Question: {question.question}", "Passages seen before:", *(f"- {t}" for t in seen)]
        lines += ["Analysis: x", "Query: y", "Passages found:", *(f"- {t}: {PAGES[t].text}" for t in found)]
        return json.loads(mind.judge_relevance("\n".join(lines)))["relevance"]

    assert judge([], [first]) == 1.0 and judge([first], [second]) == 1.0
    assert judge([first], [first]) == 0.0 and judge([], [other]) == 0.0 and judge([], [other, first]) == 0.5


@pytest.mark.parametrize(("prediction", "right"), [("Rome", True), ("the city of Rome", True), ("Romeo", False), ("", False)])
def test_the_mind_judges_answers(prediction, right):
    prompt = f"Task: answer\nQuestion: x\nGold answers:\n- Rome\nPrediction: {prediction}"
    assert json.loads(Mind({}, NO_ERRORS, 0).judge_answer(prompt))["correct"] is right
