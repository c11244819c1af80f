"""index: passages -> BM25 and a dense FAISS index, with a manifest."""

from r3flow.files import write_json
from r3flow.retrieval.build import build_index
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    manifest = build_index(stage.params, "data/prepared/corpus.jsonl", "index", stage.reporter)
    write_json("metrics/index.json", {key: manifest[key] for key in ("count", "dimension", "encoder", "metric")})


if __name__ == "__main__":
    run("index", body)
