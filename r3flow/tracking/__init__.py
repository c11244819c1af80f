"""The only package that imports mlflow, and the only one that reads `dvc.lock`. `python -m r3flow.tracking sync` fills MLflow.

Stages write journals (`journal`), a follower or a sync reads them together with `dvc.lock` and the metrics files (`sync`). Nothing here can
change a result, so DVC is not told of it: these files are exempt from the stages' dependencies.
"""
