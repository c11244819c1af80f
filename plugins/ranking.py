"""A worked example of a process reward: the reciprocal rank of the first new gold passage among a step's hits."""

from r3flow.trajectory import Step, Trajectory


def score(trajectory: Trajectory) -> list[float | None]:
    """For each step 1 / the rank, from 1, of its first supporting passage that no earlier step showed; 0 without one.

    None, which is unknown, for every step that searched if the question's supporting passages are not known.
    """
    gold = trajectory.question.gold_ids
    seen: set[str] = set()
    values: list[float | None] = []
    for step in trajectory.steps:
        hits = step.hits if isinstance(step, Step) else ()  # an InvalidStep has text and a reason, but no hits
        if gold is None:
            values.append(None if hits else 0.0)
            continue
        ranks = [rank for rank, hit in enumerate(hits, 1) if hit.passage.id in gold and hit.passage.id not in seen]
        values.append(1 / ranks[0] if ranks else 0.0)
        seen.update(hit.passage.id for hit in hits)
    return values
