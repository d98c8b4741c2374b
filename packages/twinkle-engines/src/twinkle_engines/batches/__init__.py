"""Batches: tokens of prompts and sequences in ragged columns, how they are made, padded and packed."""

OF_THE_WHOLE = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Columns by which Transformers' flattening collator describes a whole pack to kernels; positions say the same."""
