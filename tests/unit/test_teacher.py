"""Synthesis: the same attempts whatever the order of arrival, and no failure of a service ever becomes a trajectory."""

import asyncio
import gc
import json
import random

import pytest

from r3flow.errors import EndpointError, EndpointRefusedError
from r3flow.llm import wording
from r3flow.llm.batching import BatchedSearch
from r3flow.llm.teacher import FORM, TRY_STRIDE, WINDOW, Attempt, synthesize, without_thought
from r3flow.params import SecondTeacher
from r3flow.progress import Silent
from r3flow.simulated.http import Reply
from r3flow.simulated.server import completion
from r3flow.trajectory import InvalidStep, Step
from tests.llm_fakes import BadServer, FakeEnvironment, Speaker, client, endpoint, failing, params, questions

SETTINGS = params(synthesize={"attempts": 3, "format_tries": 2}, protocol={"max_steps": 4})


class Notes(Silent):
    def __init__(self):
        self.seen = []

    def progress(self, done, total, note=""):
        self.seen.append((done, total, note))


def run(made, count=30, environment=None, reporter=None, settings=SETTINGS):
    return list(synthesize(settings, questions(count), environment or FakeEnvironment(), made, reporter or Silent()))


def lines(attempts):
    return [json.dumps(attempt.to_json()) for attempt in attempts]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """One question at a time, undisturbed."""
    with BadServer() as server, client(server.url, tmp_path_factory.mktemp("plain"), concurrency=1) as made:
        return lines(run(made))


def delays(seed):
    """Hold a third of the answers back, so that they arrive in another order."""
    rng = random.Random(seed)

    def misbehave(number, body):
        if rng.random() > 0.3:
            return None
        request = json.loads(body)
        text = Speaker().teach(request["messages"][-1]["content"], request["seed"])
        return Reply.json(completion("m", text, prompt_tokens=1, completion_tokens=1), delay_s=rng.random() * 0.05)

    return misbehave


@pytest.mark.parametrize("seed", range(3))
def test_attempts_do_not_depend_on_the_order_of_arrival_or_on_the_ledger(tmp_path, expected, seed):
    with BadServer(delays(seed)) as server:
        with client(server.url, tmp_path, concurrency=8) as made:
            assert lines(run(made)) == expected
        total = server.total
        with client(server.url, tmp_path, concurrency=3) as made:
            assert lines(run(made)) == expected
        assert server.total == total


def test_a_third_of_the_requests_fail_and_the_attempts_are_the_same(tmp_path, expected):
    with BadServer(failing(0.3)) as server, client(server.url, tmp_path, max_retries=14) as made:
        assert lines(run(made)) == expected


def test_attempts_stop_at_the_first_match_and_hold_every_kind_of_end(expected):
    attempts = [Attempt.from_json(json.loads(line)) for line in expected]
    assert lines(attempts) == expected
    finishes = {attempt.trajectory.finish for attempt in attempts}
    assert finishes == {"answered", "malformed", "budget"}
    names = [attempt.trajectory.question.id for attempt in attempts]
    assert list(dict.fromkeys(names)) == [f"q{i}" for i in range(30)]
    for name in set(names):
        mine = [attempt for attempt in attempts if attempt.trajectory.question.id == name]
        assert [attempt.attempt for attempt in mine] == list(range(len(mine)))
        assert not any(attempt.matched for attempt in mine[:-1])
        assert mine[-1].matched or len(mine) == 3
    for attempt in attempts:
        steps = attempt.trajectory.steps
        assert all(isinstance(step, Step) and len(step.hits) == 1 for step in steps[:-1])
        assert attempt.trajectory.finish != "budget" or len(steps) == 4
        assert (attempt.trajectory.finish == "malformed") == isinstance(steps[-1], InvalidStep)


def test_the_teacher_sees_instructions_and_the_transcript_and_nothing_else(tmp_path):
    with BadServer() as server, client(server.url, tmp_path, concurrency=1) as made:
        (attempt, *_) = run(made, 1)
        bodies = [json.loads(body) for body in server.seen]
    assert len({body["messages"][0]["content"] for body in bodies}) == 1
    user = bodies[1]["messages"][1]["content"]
    first = attempt.trajectory.steps[0]
    assert user == (
        "The question: What is the code of name0?\n"
        f"Step 1:\nThe problem analysis: {first.analysis}\nThe retrieval query: {first.query}\n"
        "The retrieval documents: [1] Page of name0 part 1: Something about name0 part 1.\n"
    )
    assert "value of name0" not in user and "value of name0" not in bodies[0]["messages"][0]["content"]
    assert bodies[0]["temperature"] == 0.0 and bodies[0]["seed"] == 0


def test_later_attempts_and_second_tries_are_warm_and_have_seeds_of_their_own(tmp_path):
    with BadServer() as server, client(server.url, tmp_path) as made:
        run(made)
        bodies = [json.loads(body) for body in server.seen]
    assert {(body["seed"], body["temperature"]) for body in bodies} == {
        (0, 0.0), (1, 0.9), (2, 0.9), (TRY_STRIDE, 0.9), (TRY_STRIDE + 1, 0.9), (TRY_STRIDE + 2, 0.9)
    }  # fmt: skip


@pytest.mark.parametrize("status", [401, 402])
def test_a_refusal_stops_at_once_and_after_it_nothing_is_paid_twice(tmp_path, expected, status):
    with BadServer() as server:
        server.misbehave = lambda number, body: Reply.json({"error": {"message": "no"}}, status) if number >= 50 else None
        with client(server.url, tmp_path, concurrency=4) as made, pytest.raises(EndpointRefusedError, match=str(status)):
            run(made)
        assert 50 <= server.total <= 54
        server.misbehave = lambda number, body: None
        with client(server.url, tmp_path) as made:
            assert lines(run(made)) == expected
        assert max(server.answered.values()) == 1


def test_an_endpoint_that_dies_stops_the_synthesis_and_keeps_what_was_on_the_wire(tmp_path, expected):
    """One request fails for good while others are slow: the slow ones are still kept."""
    with BadServer() as server:
        slow = delays(1)
        server.misbehave = lambda number, body: Reply(500, b"") if b"name7?" in body else slow(number, body)
        with client(server.url, tmp_path, max_retries=1, concurrency=4) as made, pytest.raises(EndpointError, match="answered 500"):
            run(made)
        server.misbehave = lambda number, body: None
        before = dict(server.seen)
        with client(server.url, tmp_path) as made:
            assert lines(run(made)) == expected
        repeated = [body for body, count in server.seen.items() if body in before and count > before[body]]
        assert all(b"name7?" in body for body in repeated)


def test_a_failing_retriever_stops_the_synthesis(tmp_path):
    class Broken(FakeEnvironment):
        def search(self, queries):
            if any("name5 " in query for query in queries):
                raise EndpointError("the retriever is down")
            return super().search(queries)

    with BadServer() as server, client(server.url, tmp_path, concurrency=64) as made:
        with pytest.raises(EndpointError, match="retriever is down"):
            run(made, 300, environment=Broken())
        assert server.total < 500  # the other 250 of the window do not go on


def test_a_bug_in_the_retriever_is_not_swallowed(tmp_path):
    class Broken(FakeEnvironment):
        def documents(self, hits):
            raise ZeroDivisionError

    with BadServer() as server, client(server.url, tmp_path) as made, pytest.raises(ZeroDivisionError):
        run(made, environment=Broken())


def test_memory_holds_a_window_of_questions(tmp_path):
    with BadServer() as server, client(server.url, tmp_path, concurrency=2) as made:
        attempts = synthesize(SETTINGS, questions(100), FakeEnvironment(), made, Silent())
        next(attempts)
        asked = {json.loads(body)["messages"][1]["content"].split("\n")[0] for body in server.seen}
        assert len(asked) <= 2 * WINDOW + 2
        attempts.close()
        gc.collect()


def test_progress_tells_what_was_accepted(tmp_path):
    notes = Notes()
    with BadServer() as server, client(server.url, tmp_path) as made:
        attempts = run(made, reporter=notes)
    assert [done for done, _, _ in notes.seen] == list(range(1, 31))
    assert notes.seen[-1] == (30, 30, f"accepted {sum(attempt.matched for attempt in attempts)}/30")


def test_queries_of_many_trajectories_share_a_batch_and_equal_ones_a_search(tmp_path):
    environment = FakeEnvironment()

    async def many():
        search = BatchedSearch(environment.search, max_batch=16)
        hits = await asyncio.gather(*[search(f"query {i % 20}") for i in range(60)])
        search.close()
        return hits

    hits = asyncio.run(many())
    assert [hit[0].passage.id for hit in hits] == [f"query {i % 20}" for i in range(60)]
    assert sum(environment.batches) == 20 and max(environment.batches) <= 16 and len(environment.batches) == 2


def test_the_teachers_prompt_holds_examples_that_parse():
    from r3flow.protocol import PROTOCOLS

    shown = [part.split("\n\n")[0] for part in wording.teacher(FORM).split("You write:\n")[1:]]
    assert len(shown) == 2
    for part in shown:
        number = int(part.split(":")[0].removeprefix("Step "))
        assert isinstance(PROTOCOLS[FORM].parse(part, number), Step), part


@pytest.mark.parametrize("name", ["search_r1", "research"])
def test_the_policys_protocol_changes_no_request_to_the_teacher(name, tmp_path):
    with BadServer() as server, client(server.url, tmp_path) as made:
        attempts = [run(made, 6, settings=params(protocol={"name": protocol})) for protocol in (FORM, name)]
    assert attempts[0] == attempts[1] and set(server.seen.values()) == {1}


def second(**changes):
    """The settings with a second teacher, and the class that its section has."""
    rates = {**SETTINGS.simulated.model_dump(), "fails_four_hops": 0.0}
    section = SecondTeacher.model_validate(
        {**endpoint().model_dump(), "model": "strong-teacher", "simulated": rates, "attempts": 2, **changes}
    )
    return SETTINGS.model_copy(update={"second_teacher": section})


def test_the_second_teacher_has_attempts_of_its_own_and_signs_them(tmp_path, expected):
    settings = second(attempts=1)
    with BadServer() as server, client(server.url, tmp_path, model="strong-teacher") as made:
        attempts = list(synthesize(settings, questions(30), FakeEnvironment(), made, Silent(), "second"))
        assert {json.loads(body)["model"] for body in server.seen} == {"strong-teacher"}
    assert len(attempts) == 30 and {attempt.teacher for attempt in attempts} == {"second"}
    assert all(attempt.to_json()["teacher"] == "second" for attempt in attempts)
    assert [Attempt.from_json(json.loads(line)) for line in lines(attempts)] == attempts
    # an unsigned line is the first teacher's: that is what every older file holds
    firsts = [Attempt.from_json(json.loads(line)) for line in expected]
    assert {attempt.teacher for attempt in firsts} == {"first"} and "teacher" not in expected[0]
    with pytest.raises(ValueError, match="field 'teacher' must be first or second, got 'third'"):
        Attempt.from_json({**firsts[0].to_json(), "teacher": "third"})


def test_both_teachers_are_paid_and_kept_apart_in_one_ledger(tmp_path):
    with BadServer() as server:
        with client(server.url, tmp_path) as made:
            run(made, 5)
        first = server.total
        with client(server.url, tmp_path, model="strong-teacher") as made:
            list(synthesize(second(), questions(5), FakeEnvironment(), made, Silent(), "second"))
        assert server.total > first
    models = [json.loads(line)["model"] for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert set(models) == {"simulated-teacher", "strong-teacher"} and len(models) == server.total


def thinking(number, body):
    """Answer as DeepSeek does with thinking on: `reasoning_content` beside the content."""
    request = json.loads(body)
    text = Speaker().teach(request["messages"][-1]["content"], request["seed"])
    value = completion("m", text, prompt_tokens=1, completion_tokens=1)
    value["choices"][0]["message"]["reasoning_content"] = "SECRET THOUGHT\nStep 1:\nThe final answer: SECRET"
    return Reply.json(value)


def in_the_text(number, body):
    """Answer as R1's weights do behind a server without a reasoning parser."""
    request = json.loads(body)
    text = Speaker().teach(request["messages"][-1]["content"], request["seed"])
    opened = "<think>\n" if number % 2 else ""  # the chat template may have written the first tag
    said = f"{opened}SECRET THOUGHT\nStep 1:\nThe final answer: SECRET\n</think>\n\n{text}"
    return Reply.json(completion("m", said, prompt_tokens=1, completion_tokens=1))


@pytest.mark.parametrize("misbehave", [thinking, in_the_text])
def test_what_a_teacher_thinks_is_no_part_of_a_trajectory_and_is_sent_back_to_nobody(tmp_path, expected, misbehave):
    with BadServer(misbehave) as server, client(server.url, tmp_path) as made:
        attempts = run(made)
        bodies = list(server.seen)
    assert lines(attempts) == expected
    assert not any(b"SECRET" in body for body in bodies)
    assert misbehave is in_the_text or "SECRET" not in (tmp_path / "ledger.jsonl").read_text()


def test_a_reply_that_ended_within_its_reasoning_says_nothing():
    assert without_thought("<think>\nStep 1:\nThe problem analysis: x\nThe final answer: y") == ""
    assert without_thought("a</think> b</think>\n\nStep 1:") == "Step 1:"
    assert without_thought("Step 1:\nplain") == "Step 1:\nplain"
