"""Batches: tokens of prompts and sequences in ragged columns, how they are made, padded and packed."""
