"""Algorithms: rewards, advantages and losses as plain functions."""
