"""The tape: the file in which a run records chosen steps, for `ampwatch lab diff` to hold against another.

``rows.py`` says what is in it, ``files.py`` how it stands in a file. No torch here: a tape is read on any machine.
"""
