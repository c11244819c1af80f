"""control: the cold start with more SFT on the same trajectories, for as many training tokens as PPO used."""

from r3flow.files import read_jsonl
from r3flow.training.sft import control_schedule, ppo_tokens, train_sft, write_outputs
from r3flow.trajectory import Trajectory
from stages._runner import StageRun, run


def body(stage: StageRun) -> None:
    trajectories = list(read_jsonl("data/trajectories/accepted.jsonl", Trajectory.from_json))
    schedule = control_schedule(stage.params, ppo_tokens())
    metrics, curve = train_sft(stage.params, "models/cold_start", trajectories, schedule, "models/control", stage.work, stage.reporter)
    write_outputs("control", metrics, curve)


if __name__ == "__main__":
    run("control", body)
