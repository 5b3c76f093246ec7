"""Measurements: each module is one command; `suite` runs those of the network."""
