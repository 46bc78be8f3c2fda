"""Origins of non-finite values: the op in which a finite value became non-finite."""
