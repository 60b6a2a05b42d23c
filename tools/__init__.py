"""Small programs that keep this repository in order."""
