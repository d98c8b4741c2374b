"""From what both sides hold to who sends which block to whom: pure functions, the same on every host."""
