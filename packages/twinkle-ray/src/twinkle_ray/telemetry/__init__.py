"""Worker logs, metrics and the timeline of a run."""
