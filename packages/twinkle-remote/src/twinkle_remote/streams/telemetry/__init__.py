"""What a stream tells of its run: figures, a forecast, a timeline, a progress bar."""
