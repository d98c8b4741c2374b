"""What a user sees of a run: worker logs, metrics and the timeline."""
