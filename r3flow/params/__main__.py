"""`python -m r3flow.params [FILE]`: refuse a bad params file with one line, before DVC starts."""

import sys

from r3flow.errors import ConfigError
from r3flow.params.reading import load

try:
    load(*sys.argv[1:2])
except ConfigError as error:
    sys.exit(f"error: {error}")
