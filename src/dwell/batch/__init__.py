"""The shapes that travel: many messages, or what became of them, in columns."""
