"""Telemetry of a stream's run: metrics, a forecast, a timeline, a progress bar."""
