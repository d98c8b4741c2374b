"""Telemetry of a stream's run: figures, a forecast, a timeline, a progress bar."""
