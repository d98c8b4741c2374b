"""The order of samples: permutations, steps, tails and packs."""
