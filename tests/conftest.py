"""Settings of the whole suite."""

from hypothesis import settings

# a time limit on single examples fails on a busy machine and says nothing about the code; speed is measured in benchmarks/
settings.register_profile("r3flow", deadline=None)
settings.load_profile("r3flow")
