"""Calls of the watched models that are kept, and made again on a replica of the model.

Others use three modules of it: ``replay.Replay`` makes one call again and has somebody see each op,
``kept_calls`` has what a call is and why it is refused, and ``sensor.ReplaySensor`` keeps calls, and
replays those of a step that has failed. What is behind these is nobody else's.
"""
