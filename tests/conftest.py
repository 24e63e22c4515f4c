"""What holds for all tests."""

import os

# As the command line does it: threads that spin while they wait slow a shared machine down. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
