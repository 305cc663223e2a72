"""Phones and boards connected by TVM's RPC: sessions with timeouts, descriptions, models."""
