"""The components that the conformance suite runs."""
