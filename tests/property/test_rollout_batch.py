"""Random token streams: rewards, mask, old log-probabilities and step ends stay on the tokens that they belong to."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3flow.rollout import Rollout
from r3flow.training.batch import Batch
from r3flow.trajectory import Question, Step, Trajectory


@st.composite
def streams(draw):
    """A rollout whose token ids are unique in the batch, so that each can be recognised, with a reward a step."""
    start = draw(st.integers(0, 10)) * 1000
    prompt = draw(st.integers(1, 5))
    mask, ends = [], []
    for _ in range(draw(st.integers(1, 4))):
        mask += [1] * draw(st.integers(1, 5))
        ends.append(len(mask) - 1)
        mask += [0] * draw(st.integers(0, 4))
    ids = list(range(start, start + prompt + len(mask)))
    steps = tuple(Step(number + 1, "a", query="q") for number in range(len(ends)))
    logprobs = [-float(token) * own for token, own in zip(ids[prompt:], mask, strict=True)]
    rewards = [float(draw(st.integers(-9, 9))) for _ in ends]
    trajectory = Trajectory(Question("q", "?", ("a",)), steps, "budget")
    return Rollout(trajectory, ids[:prompt], ids[prompt:], mask, logprobs, ends), rewards


BATCHES = st.lists(streams(), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(BATCHES, st.booleans())
def test_everything_stays_on_its_token(items, masked):
    rollouts, rewards = [item[0] for item in items], [item[1] for item in items]
    batch = Batch(rollouts, rewards, list(range(len(items))), mask_retrieved=masked)
    seen = []
    for chunk in batch.chunks(range(len(batch))):
        states = chunk.ids.reshape(-1)[chunk.positions]
        # ids run on by one, so the state that predicts a token is the one of the id before it
        assert torch.equal(states + 1, chunk.targets)
        seen += list(zip(chunk.targets.tolist(), chunk.flat.tolist(), strict=True))
    assert sorted(place for _, place in seen) == list(range(batch.offsets[-1]))
    token_at = {place: token for token, place in seen}
    place = 0
    for rollout, earned in zip(rollouts, rewards, strict=True):
        left = dict(zip(rollout.step_ends, earned, strict=True))
        for at, token in enumerate(rollout.completion_ids):
            if masked and not rollout.mask[at]:
                continue
            assert token_at[place] == token
            assert bool(batch.own[place]) == bool(rollout.mask[at])
            assert batch.old[place] == (-float(token) if rollout.mask[at] else 0.0)
            assert bool(batch.step_end[place]) == (at in left)
            assert float(batch.rewards[place]) == left.pop(at, 0.0)
            place += 1
        assert not left
    assert place == batch.offsets[-1]


@settings(max_examples=60, deadline=None)
@given(BATCHES)
def test_padding_and_back(items):
    batch = Batch([item[0] for item in items], [item[1] for item in items], list(range(len(items))), mask_retrieved=True)
    rows = batch.padded(batch.rewards)
    assert rows.sum() == pytest.approx(sum(sum(item[1]) for item in items))
    mask = batch.padded(torch.ones_like(batch.step_end))
    assert mask.sum(1).tolist() == batch.counts
    assert torch.equal(rows[mask], batch.rewards)


@settings(max_examples=60, deadline=None)
@given(BATCHES, st.integers(1, 4), st.integers(0, 5))
def test_minibatches_hold_every_trajectory_once(items, count, seed):
    batch = Batch([item[0] for item in items], [item[1] for item in items], list(range(len(items))), mask_retrieved=True)
    parts = batch.minibatches(count, seed)
    assert sorted(row for part in parts for row in part) == list(range(len(items)))
    assert len(parts) == count
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert parts == batch.minibatches(count, seed)


def rollout(**changes):
    values = {"prompt_ids": [1], "completion_ids": [2, 3, 4], "mask": [1, 0, 1], "logprobs": [-1.0, 0.0, -1.0], "step_ends": [0, 2]}
    steps = (Step(1, "a", query="q"), Step(2, "a", answer="b"))
    return Rollout(Trajectory(Question("q7", "?", ("a",)), steps, "answered"), **{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": [1, 0]}, "3 tokens, 2 mask entries"),
        ({"logprobs": [0.0]}, "1 log-probabilities"),
        ({"prompt_ids": []}, "q7"),
        ({"step_ends": [0]}, "2 steps, 1 ends"),
        ({"step_ends": [0, 1]}, "does not end on a policy token"),
        ({"step_ends": [0, 3]}, "does not end on a policy token"),
        ({"step_ends": [2, 0]}, "not in order"),
        ({"mask": [1, 1, 1], "step_ends": [0, 1]}, "behind the last step's end"),
    ],
)
def test_streams_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Batch([rollout(**changes)], [[0.0, 1.0]], [0], mask_retrieved=True)
    Batch([rollout()], [[0.0, 1.0]], [0], mask_retrieved=True)
