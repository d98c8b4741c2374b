"""Samplers: components that write sequences, by Transformers or by vLLM."""
