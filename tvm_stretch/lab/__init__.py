"""Branched, trained and compressed networks: what changes a network before it is compiled."""
