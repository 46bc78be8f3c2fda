"""Exponent histograms of gradients, outputs, weights and updates."""
