"""Backups: copies of an open store, as a folder or a tar file."""
