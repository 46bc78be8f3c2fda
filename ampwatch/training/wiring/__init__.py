"""The parts of one watched training, wired together by family."""
