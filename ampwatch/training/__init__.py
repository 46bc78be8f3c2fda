"""What runs in the training process, and alone needs torch: it emits records and findings."""
