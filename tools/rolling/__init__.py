"""A rolling upgrade: processes of an older revision are replaced one by one while all work."""
