"""The stores, which keep the messages."""
