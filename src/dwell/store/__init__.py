"""The stores: what keeps the messages."""
