"""What holds for all tests."""

import os

# As the command line does it: threads wait awake for a moment, then sleep. Read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")
