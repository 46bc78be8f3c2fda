"""The op in which a finite value became non-finite."""
