"""The wire: how messages and errors are written between a server and its clients."""
