"""Data ranks of the stages of a stream: lost, started again, joined."""
