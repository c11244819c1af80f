"""prepare: the demo world, or the user's own files -> typed questions and passages."""

from collections import Counter

from r3flow.data.readers import Dataset, read_files
from r3flow.data.world import generate_world
from r3flow.files import write_json, write_jsonl
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    params = stage.params
    if params.prepare.source == "world":
        world = generate_world(params.seed, params.prepare.world)
        data = Dataset(world.passages, world.questions)
        knowledge = world.knowledge()
    else:
        data, knowledge = read_files(params.prepare.files), None
    write_jsonl("data/prepared/corpus.jsonl", (passage.to_json() for passage in data.passages))
    counts = {}
    for split, questions in data.questions.items():
        write_jsonl(f"data/prepared/{split}.jsonl", (question.to_json() for question in questions))
        kinds = Counter(f"{question.type or 'untyped'}/{question.hops or '-'}" for question in questions)
        counts[split] = {"questions": len(questions), "by_type_and_hops": dict(sorted(kinds.items()))}
    write_json("data/world.json", knowledge)
    write_json("metrics/prepare.json", {"passages": len(data.passages), **counts})


if __name__ == "__main__":
    run("prepare", body)
