"""The tape of a run: what its recorded steps compute, tensor by tensor."""
