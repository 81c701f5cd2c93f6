"""`make gpu`: builds with what is installed, runs every suite on a real GPU, measures, reports.

python -m gpulane (with tools/ on PYTHONPATH). Nothing is downloaded. See docs/gpu.md.
"""
