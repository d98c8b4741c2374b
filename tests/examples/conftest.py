import sys
from pathlib import Path

# The examples import one another as top-level modules, as they do where they are run.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
