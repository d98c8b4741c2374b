"""Groups of workers: the actors, their node agents, and workers that are lost."""
