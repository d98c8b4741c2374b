"""Checkpoints of a training, and exports of its model."""
