"""Names of GPU kernels, and the units that they multiply on."""
