"""The Ray backend of twinkle: placement, data plane, collectives and weight sync."""
