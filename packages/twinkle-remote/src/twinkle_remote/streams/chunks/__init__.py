"""Chunks of rows at work in the stages of a stream, and what they returned."""
