"""Runs tasks with their inputs on a worker."""
