"""What runs inside a serving engine's own process, and imports nothing else of dryserve.

`dryserve.recording` is the package `recording` in here: `dryserve.py` looks for it in this folder, and a
wheel holds it beside `dryserve/__init__.py`.
"""
