"""Agents: environments, the paths of token-exact episodes, and episodes as a stage."""
