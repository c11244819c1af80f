"""Serve the pipeline as a deployment of the server that PREFECT_API_URL names: `python -m flows.serve`.

Runs can then be started and scheduled in Prefect's UI. One at a time: a folder holds one run.
"""

from flows.pipeline import pipeline

if __name__ == "__main__":
    pipeline.serve(
        name="pipeline",
        description="Brings every stage up to date; only what changed runs.",
        tags=["r3flow"],
        limit=1,
        print_starting_message=False,
    )
