import sys
from pathlib import Path

# Templates and a tokenizer that the tests of engines have.
sys.path.insert(0, str(Path(__file__).parents[2] / "engines"))
