"""Plans: which rank sends which block to which ranks. Pure functions, with the same result on every host."""
