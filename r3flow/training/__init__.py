"""SFT, PPO and GRPO on TRL, with credit, losses and critic as plain functions."""
