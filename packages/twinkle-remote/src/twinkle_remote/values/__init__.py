"""Values with rows: how they are cut, joined and reduced."""
