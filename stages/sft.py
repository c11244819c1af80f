"""sft: accepted trajectories -> the cold-start policy."""

from r3flow.files import read_jsonl
from r3flow.training.sft import cold_start_schedule, train_sft, write_outputs
from r3flow.trajectory import Trajectory
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    params = stage.params
    trajectories = list(read_jsonl("data/trajectories/accepted.jsonl", Trajectory.from_json))
    metrics, curve = train_sft(
        params, params.policy.base, trajectories, cold_start_schedule(params), "models/cold_start", stage.work, stage.reporter
    )
    write_outputs("sft", metrics, curve)


if __name__ == "__main__":
    run("sft", body)
