"""Which sample comes when: permutation, steps, tails and packs."""
