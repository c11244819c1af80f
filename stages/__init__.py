"""WHAT each DVC stage does, one short file a stage."""

import os

# GNU's OpenMP reads it when torch loads it, so it stands before every import. Threads that wait for work spin for so long, then sleep:
# the default burns a tenth of the CPU time of rollouts for nothing, and without any spinning their small steps get a third slower.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
