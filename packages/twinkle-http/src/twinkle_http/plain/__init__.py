"""Plain JSON: the served classes for programs in other languages, and what describes them."""
