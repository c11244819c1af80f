"""What a params file asks for, before anything runs: `r3flow plan`. Imports no torch and uses no network."""
