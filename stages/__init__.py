"""WHAT each DVC stage does, one short file a stage."""
