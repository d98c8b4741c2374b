"""Tables and hand-overs: what the next call reads of rows that lie on workers, without moving them before."""
