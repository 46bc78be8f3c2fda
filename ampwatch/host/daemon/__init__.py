"""The host program: it finds rings, keeps what they say, and serves it. No torch here."""
