"""What the page shows of the laboratory. No torch, no network."""
