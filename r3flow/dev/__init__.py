"""Tools for those who change R3Flow itself; no stage uses them."""
