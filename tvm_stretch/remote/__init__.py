"""Phones and boards behind TVM's RPC: sessions that end in time, what they are, models on them."""
