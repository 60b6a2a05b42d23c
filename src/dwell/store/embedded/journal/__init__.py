"""The journal: what happened, batch by batch, in append-only segments."""
