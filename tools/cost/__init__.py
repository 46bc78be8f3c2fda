"""What watching costs, from what was measured: tables and a picture, and whether they are of this code."""
