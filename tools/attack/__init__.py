"""Attacks: what strangers, tenants and pages of the web try, against a server that is served."""
