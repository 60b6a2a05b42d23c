"""The board: the view of a server, computed once for all viewers."""
