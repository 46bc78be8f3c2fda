"""The training that ``ampwatch demo`` runs: small, real, and broken on purpose."""
