"""Columns of a collator that belong to the whole batch, unlike those with a value for each row."""

from __future__ import annotations

OF_THE_WHOLE = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
"""Columns by which Transformers' flattening collator describes a whole pack to kernels (FlashAttentionKwargs)."""
